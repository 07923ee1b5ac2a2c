from __future__ import annotations

from collections import Counter

import pytest

from galleries.recorder.catalogue import faulty, healthy
from galleries.recorder.fault import Fault
from lightning_hooks.recorder.record import Verdict


def test_names_are_unique() -> None:
    counts = Counter(fault.name for fault in [*faulty(), *healthy()])
    assert [name for name, count in counts.items() if count > 1] == []


def test_there_are_enough() -> None:
    assert len(faulty()) >= 45
    assert len(healthy()) >= 10


def test_every_verdict_that_one_process_can_have_is_expected_somewhere() -> None:
    expected = {fault.verdict for fault in faulty()}
    assert expected == set(Verdict) - {Verdict.ALL_REDUCE, Verdict.GRADIENTS, Verdict.NOT_REPRODUCED, Verdict.SIGNAL}


@pytest.mark.parametrize("fault", [*faulty(), *healthy()], ids=lambda fault: fault.name)
def test_a_training_is_well_formed(fault: Fault) -> None:
    assert fault.says.endswith(".")
    assert fault.step < fault.steps <= 70
    assert fault.direction in ("", "forward", "backward", "update")
    assert bool(fault.node) <= (fault.direction == "backward")
    assert sum(parameter.numel() for parameter in fault.build().module.parameters()) < 600
