"""All trainings of the gallery that run in one process."""

from __future__ import annotations

from galleries.recorder import (
    backward_faults,
    call_faults,
    domain_faults,
    failures,
    loss_faults,
    penalty_faults,
    range_faults,
    scaler_faults,
    state_faults,
)
from galleries.recorder import healthy as healthy_trainings
from galleries.recorder.fault import Fault


def faulty() -> list[Fault]:
    """Trainings each of which has one planted fault."""
    families = (
        domain_faults,
        range_faults,
        loss_faults,
        call_faults,
        backward_faults,
        penalty_faults,
        state_faults,
        scaler_faults,
        failures,
    )
    return [fault for family in families for fault in family.FAULTS]


def healthy() -> list[Fault]:
    """Trainings of which there is no record."""
    return list(healthy_trainings.FAULTS)
