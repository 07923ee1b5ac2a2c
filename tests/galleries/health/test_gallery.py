"""Nothing is said of healthy trainings, and faults are named in time: in the whole record, and in a sample that trains."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from galleries.health.catalogue import NAMED, faulty, healthy
from galleries.health.judge import judge
from galleries.health.table import RESULTS
from galleries.health.training import Training
from galleries.rules import command_of
from galleries.sample import sample

FAULTS = sample(each for each in faulty() if each.name in NAMED)
RECORDED = [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("training", sample(healthy()), ids=lambda training: training.name)
def test_nothing_is_said_of_a_healthy_training(training: Training, tmp_path: Path) -> None:
    verdict = judge(training, 0, tmp_path)
    assert verdict.error == ""
    assert [(finding.rule, finding.rows, step) for finding, step in verdict.alarms] == []


@pytest.mark.slow
@pytest.mark.parametrize("training", FAULTS, ids=lambda training: training.name)
def test_a_fault_is_named_in_time_with_its_cause(training: Training, tmp_path: Path) -> None:
    verdict = judge(training, 0, tmp_path)
    assert verdict.is_in_time, [(finding.rule, finding.rows, step) for finding, step in verdict.findings]
    assert verdict.has_cause, verdict.causes


def test_the_named_faults_are_in_the_gallery() -> None:
    assert set(NAMED) <= {training.name for training in faulty()}


def test_every_training_is_recorded_without_an_error() -> None:
    names = [training.name for training in [*healthy(), *faulty()]]
    assert [(each["name"], each["seed"]) for each in RECORDED] == [(name, 0) for name in names], (
        f"run: {command_of('health/results.jsonl')}"
    )
    assert [each for each in RECORDED if each["error"]] == []


def test_in_the_record_nothing_is_said_of_healthy_trainings() -> None:
    sound = {training.name for training in healthy()}
    alarms = [
        (each["name"], each["seed"], rule)
        for each in RECORDED
        if each["name"] in sound
        for rule, _, severity, _ in each["findings"]
        if severity != "info"
    ]
    assert alarms == []


def test_in_the_record_the_named_faults_are_named_in_time_with_their_causes() -> None:
    runs = [each for each in RECORDED if each["name"] in NAMED]
    assert [(each["name"], each["seed"]) for each in runs if not (each["in_time"] and each["cause"])] == []
