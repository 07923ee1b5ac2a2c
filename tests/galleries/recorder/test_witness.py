"""Every fault really does what the gallery says, measured without the package."""

from __future__ import annotations

from pathlib import Path

import pytest

from galleries.recorder.catalogue import faulty, healthy
from galleries.recorder.fault import Fault, fit
from galleries.recorder.scaler_faults import SCALED
from galleries.recorder.witness import Witness
from galleries.sample import sample
from lightning_hooks.recorder.record import Verdict

FAULTS = sample([each for each in faulty() if not each.failure], of_each=2, family=lambda fault: fault.verdict)
FIRST_BAD = {
    Verdict.FORWARD: "loss",
    Verdict.BATCH: "loss",
    Verdict.BACKWARD: "grad",
    Verdict.SCALER: "grad",
    Verdict.UPDATE: "param",
    Verdict.WEIGHTS: "weights",
}


def batch_of(fault: Fault, accumulate: int) -> int:
    return (fault.step if fault.begins is None else fault.begins) * accumulate + fault.micro_batch


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_where_the_gallery_says(fault: Fault, tmp_path: Path) -> None:
    witness = Witness()
    trainer = fit(fault, tmp_path, [witness])
    batch = batch_of(fault, trainer.accumulate_grad_batches)
    assert fault.verdict is not None
    assert min(witness.bad.values()) == batch
    assert witness.bad[FIRST_BAD[fault.verdict]] == batch
    if fault.verdict in (Verdict.BACKWARD, Verdict.UPDATE, Verdict.SCALER):
        assert witness.bad.get("loss", fault.steps * 2) > batch
    if fault.operation:
        births = [birth for birth in witness.births if birth.batch == batch]
        own = [each for each in births if (each.operation, each.node) == (fault.operation, fault.node)]
        places = [("", 0)] if fault.direction == "update" else [(fault.module, fault.call)]
        assert [(birth.module, birth.call) for birth in own[:1]] == places


@pytest.mark.parametrize("fault", [each for each in faulty() if each.failure], ids=lambda fault: fault.name)
def test_a_training_that_raises_has_finite_numbers(fault: Fault, tmp_path: Path) -> None:
    witness = Witness()
    with pytest.raises(Exception) as raised:
        fit(fault, tmp_path, [witness])
    assert type(raised.value).__name__ == fault.failure
    assert witness.bad == {}


@pytest.mark.parametrize("fault", healthy(), ids=lambda fault: fault.name)
def test_a_healthy_training_trains_on_finite_numbers(fault: Fault, tmp_path: Path) -> None:
    witness = Witness()
    fit(fault, tmp_path, [witness])
    assert set(witness.bad) <= ({"grad"} if fault.name in SCALED else set())
