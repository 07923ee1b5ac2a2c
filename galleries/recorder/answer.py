"""What a tool says of a training, and which parts of that are right."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from galleries.recorder.fault import Fault
from lightning_hooks.recorder.record import FlightRecord, Verdict

MODULES = (Verdict.FORWARD, Verdict.BACKWARD, Verdict.UPDATE, Verdict.WEIGHTS, Verdict.EXCEPTION, Verdict.SCALER)
"""Verdicts of which a module or a parameter is compared; an empty name is the training step itself."""


@dataclass(frozen=True)
class Answer:
    """What a tool says. None where it says nothing.

    Args:
        verdict: a value of `Verdict`, or what the kind of its message amounts to.
        module: the dotted name of a module or parameter.
        step: the step.
        operation: the operation, such as `aten.log`, or an autograd node.
        direction: `forward`, `backward` or `update`.
        tensor: as in `Place`.
        micro_batch: as in `Place`.
        call: as in `Place`.
        node: the autograd node of a backward operation.
        failure: the class of an exception.
        text: what it said, shortened.
    """

    verdict: str | None = None
    module: str | None = None
    step: int | None = None
    operation: str | None = None
    direction: str | None = None
    tensor: str | None = None
    micro_batch: int | None = None
    call: int | None = None
    node: str | None = None
    failure: str | None = None
    text: str = ""


def answer_of(record: FlightRecord) -> Answer:
    """What a flight record says."""
    place, operation = record.place, record.operation
    return Answer(
        verdict=str(record.verdict),
        module=(record.failure.module if record.failure else "") if place is None else place.module,
        step=record.step if place is None else place.step,
        operation=operation.name if operation else None,
        direction=place.direction if place else None,
        tensor=place.tensor if place else None,
        micro_batch=place.micro_batch if place else None,
        call=place.call if place else None,
        node=operation.node if operation else None,
        failure=record.failure.type if record.failure else None,
        text=record.message,
    )


def judge(fault: Fault, answer: Answer | None) -> dict[str, bool]:
    """Which of the parts that a fault has are right; of a healthy training, whether nothing was said.

    Args:
        fault: the training.
        answer: None if nothing was said.
    """
    if fault.verdict is None:
        return {"silent": answer is None}
    said = asdict(answer or Answer())
    expected = expectations(fault)
    return {name: said[name] == value for name, value in expected.items()}


def expectations(fault: Fault) -> dict[str, Any]:
    """The parts of an answer that a fault has, with their values."""
    parts: dict[str, Any] = {"verdict": str(fault.verdict), "step": fault.step}
    # Of an exception in backward, no module is on the stack.
    if fault.verdict in MODULES and (fault.verdict, fault.direction) != (Verdict.EXCEPTION, "backward"):
        parts["module"] = fault.module
    if fault.operation:
        parts["operation"] = fault.operation
    optional = {name: getattr(fault, name) for name in ("direction", "tensor", "node", "failure")}
    parts |= {name: value for name, value in optional.items() if value}
    if fault.operation and fault.direction != "update":
        parts |= {"micro_batch": fault.micro_batch, "call": fault.call}
    return parts
