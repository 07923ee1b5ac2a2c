"""A seed draws one training: the same spec and the same bits in each process, and its repr can be typed back in."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.trainings.draw import drawn, made
from benchmarks.trainings.families import FAMILIES
from benchmarks.trainings.fitting import fitted
from benchmarks.trainings.optimizers import OPTIMIZERS, SCHEDULES
from benchmarks.trainings.parts import ACTIVATIONS, INITIALISATIONS
from benchmarks.trainings.spec import REPORTING, SETTING, Spec
from benchmarks.trainings.tricks import TRICKS

SPECS = [drawn(seed) for seed in range(400)]


def test_a_repr_can_be_typed_back_in() -> None:
    assert [eval(repr(spec), {"Spec": Spec}) for spec in SPECS] == SPECS


@pytest.mark.slow
def test_another_process_draws_the_same() -> None:
    code = "from benchmarks.trainings.draw import drawn; print(*map(repr, map(drawn, range(20))), sep='\\n')"
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.splitlines() == [repr(spec) for spec in SPECS[:20]]


def test_everything_is_drawn() -> None:
    assert {spec.family for spec in SPECS} == set(FAMILIES)
    assert {spec.optimizer for spec in SPECS} == set(OPTIMIZERS)
    assert {spec.schedule for spec in SPECS} == set(SCHEDULES)
    assert {spec.initialisation for spec in SPECS} == set(INITIALISATIONS)
    assert {spec.activation for spec in SPECS} >= set(ACTIVATIONS)
    assert {trick for spec in SPECS for trick in spec.tricks} == set(TRICKS)


def test_seeds_that_set_thresholds_report_nothing() -> None:
    assert not {*SETTING} & {*REPORTING}


@pytest.mark.slow
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_seed_gives_the_same_bits_and_a_repetition_others(family: str, tmp_path: Path) -> None:
    spec = next(spec for spec in SPECS if spec.family == family and spec.precision == "32-true")
    assert _weights(spec) == _weights(spec) != _weights(spec.repeated(1))
    first, second = (fitted(spec.shortened(20), tmp_path).value for _ in range(2))
    assert first == second


def _weights(spec: Spec) -> str:
    """A digest of the first weights and the first batch."""
    case = made(spec)
    batch = next(iter(case.loader))
    content = [*case.module.state_dict().values(), *batch]
    return hashlib.sha256(b"".join(each.double().numpy().tobytes() for each in content)).hexdigest()
