"""Nothing is said of healthy trainings, and a third of the faults is named in time. `make gallery` runs all, at three seeds."""

from __future__ import annotations

from pathlib import Path

import pytest

from galleries.health.catalogue import NAMED, faulty, healthy
from galleries.health.judge import judge
from galleries.health.training import Training


@pytest.mark.slow
@pytest.mark.parametrize("training", healthy(), ids=lambda training: training.name)
def test_nothing_is_said_of_a_healthy_training(training: Training, tmp_path: Path) -> None:
    verdict = judge(training, 0, tmp_path)
    assert verdict.error == ""
    assert [(finding.rule, finding.rows, step) for finding, step in verdict.alarms] == []


@pytest.mark.slow
@pytest.mark.parametrize("training", [each for each in faulty() if each.name in NAMED], ids=lambda training: training.name)
def test_a_fault_is_named_in_time_with_its_cause(training: Training, tmp_path: Path) -> None:
    verdict = judge(training, 0, tmp_path)
    assert verdict.is_in_time, [(finding.rule, finding.rows, step) for finding, step in verdict.findings]
    assert verdict.has_cause, verdict.causes


def test_the_named_faults_are_in_the_gallery() -> None:
    assert set(NAMED) <= {training.name for training in faulty()}
