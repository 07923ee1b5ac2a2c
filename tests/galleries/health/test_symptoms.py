"""Every faulty training really shows its fault, at the step that it says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from galleries.health.catalogue import faulty
from galleries.health.symptoms import SYMPTOMS
from galleries.health.training import Training, fit
from galleries.health.witness import Witness
from galleries.sample import sample

TRAININGS = [training for training in faulty() if training.family != "ranks"]
SEEDS = [int(seed) for seed in os.environ.get("GALLERY_SEEDS", "0").split(",")]
"""One seed by default; with GALLERY_SEEDS=0,1,2 three."""


def test_every_fault_on_one_rank_has_a_symptom() -> None:
    assert SYMPTOMS.keys() == {training.name for training in TRAININGS}


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("training", sample(TRAININGS), ids=lambda training: training.name)
def test_the_symptom_is_there(training: Training, seed: int, tmp_path: Path) -> None:
    witness = Witness()
    fit(training, seed, [witness], tmp_path)
    assert SYMPTOMS[training.name](witness)
