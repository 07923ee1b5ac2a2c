"""The verdict on a step: what happened, from the tensors that are not finite; and the same in words."""

from __future__ import annotations

from dataclasses import dataclass

from lightning_hooks.recorder.gaps import gap_text
from lightning_hooks.recorder.record import Gap, Operation, Place, TensorSummary, TrailEntry, Verdict


@dataclass(frozen=True)
class Observations:
    """What is not finite in a step, and the first call that gave a bad number.

    Args:
        found_in: `loss` (before the backward), `gradients` (before the update), or `parameters` (after the update).
        step: the step.
        bad_batch: the tensors of the batch that are not finite.
        bad_weights: the parameters and buffers that were not finite before the step changed any.
        bad_state: the tensors of the optimizer's state that are not finite, or negative where a square root is taken of them.
        call: the first call of the step that gave a bad number; None if none did, or nothing was noted.
        gap: the code around that call, which may have made the number instead; None if there is no such call.
        bad_gradients: the parameters whose gradients are not finite.
        bad_parameters: the parameters that are not finite after the update.
        world_size: the number of processes.
    """

    found_in: str
    step: int
    bad_batch: tuple[TensorSummary, ...] = ()
    bad_weights: tuple[TensorSummary, ...] = ()
    bad_state: tuple[TensorSummary, ...] = ()
    call: TrailEntry | None = None
    gap: Gap | None = None
    bad_gradients: tuple[TensorSummary, ...] = ()
    bad_parameters: tuple[TensorSummary, ...] = ()
    world_size: int = 1


def verdict_of(observations: Observations) -> Verdict:
    """The verdict that the numbers of the step alone give; a step that is run again may tell more.

    Example:
        >>> str(verdict_of(Observations("gradients", 3, bad_gradients=(TensorSummary("fc.weight", (2,), "float32", nan=1),))))
        'backward'
    """
    if observations.found_in == "parameters":
        return Verdict.UPDATE
    if observations.bad_weights:
        return Verdict.WEIGHTS
    if observations.found_in == "loss" or (observations.call is not None and observations.call.tensor == "output"):
        return Verdict.BATCH if observations.bad_batch else Verdict.FORWARD
    is_local = observations.call is not None
    return Verdict.BACKWARD if is_local or observations.world_size == 1 else Verdict.ALL_REDUCE


def message_of(
    verdict: Verdict,
    place: Place | None,
    operation: Operation | None,
    finite_until: int | None = None,
    *,
    has_loss: bool = True,
) -> str:
    """The verdict in one or two sentences.

    Args:
        verdict: the verdict.
        place: where; None if nothing was not finite.
        operation: what made the number, if it is known.
        finite_until: the last step after whose update all parameters were finite; None if there is none.
        has_loss: whether the loss of the step is known.

    Example:
        >>> message_of(Verdict.FORWARD, Place("head", "Head", "forward", "output", 0, 0, 12), None)
        'In the forward pass of step 12, head (Head) gave the first number that is not finite.'
    """
    if place is None:
        return _MESSAGES_OF_FAILURES.get(verdict, "")
    where = f"{place.module or 'the model'}{f' ({place.type})' if place.type else ''}"
    call = f", at its call {place.call + 1}" if place.call else ""
    batch = f", in batch {place.micro_batch + 1} of the step" if place.micro_batch else ""
    by = "" if operation is None else f" {_operation_text(operation)}"
    step = place.step
    if operation is None and place.gap is not None and verdict in (Verdict.FORWARD, Verdict.BACKWARD, Verdict.NOT_REPRODUCED):
        return _message_of_calls(verdict, place, place.gap, where, call, batch, has_loss)
    match verdict:
        case Verdict.BATCH:
            return f"The batch of step {step} has elements that are not finite, and they reached the loss{batch}.{by}"
        case Verdict.WEIGHTS:
            known = "" if finite_until is None else f" They were finite after the update of step {finite_until}."
            return f"{where} was not finite before step {step} began.{known}{by}"
        case Verdict.FORWARD:
            return f"In the forward pass of step {step}, {where} gave the first number that is not finite{call}{batch}.{by}"
        case Verdict.BACKWARD:
            begin = f"{_loss_text(step, has_loss)} In its backward pass,"
            if operation is None and place.tensor == "grad":
                return f"{begin} the gradient of a parameter of {where} is the first that is not finite{batch}."
            return f"{begin} {where} gave the first number that is not finite{call}{batch}.{by}"
        case Verdict.UPDATE:
            return f"The gradients of step {step} are finite, and the optimizer's update made {where} not finite.{by}"
        case Verdict.ALL_REDUCE:
            return (
                f"The gradients that rank {place.rank} computed in step {step} are finite; those of {where}, averaged over "
                f"{place.world_size} ranks, are not. Another rank's record names the call."
            )
        case Verdict.SCALER:
            return (
                f"In step {step} gradients overflow in float16 although the loss scale was lowered, first at {where}{call}"
                f"{batch}.{by}"
            )
        case Verdict.NOT_REPRODUCED:
            return (
                f"{where} gave a number that is not finite in step {step}, and not when the step was run again: suspect the "
                "hardware, or an operation that is not deterministic."
            )
        case _:
            return _MESSAGES_OF_FAILURES[verdict]


def _loss_text(step: int, is_known: bool) -> str:
    return f"The loss of step {step} is finite." if is_known else f"It is not known whether the loss of step {step} is finite."


def _message_of_calls(verdict: Verdict, place: Place, gap: Gap, where: str, call: str, batch: str, has_loss: bool) -> str:
    """What the calls of layers alone show: between which two the number was made."""
    begin, bad = f"In the forward pass of step {place.step}", f"the output of {where}{call.removeprefix(',')}"
    first = "the first that is not finite"
    if place.direction == "backward":
        begin = f"{_loss_text(place.step, has_loss)} In its backward pass"
        bad = f"the gradient of the output of {gap.at or 'the model'}"
    elif place.tensor == "loss":
        bad, first = "the loss", "the first number that is not finite"
    if verdict is Verdict.NOT_REPRODUCED:
        return (
            f"In step {place.step}, {bad} was not finite, and it was when the step was run again: suspect the hardware, or an "
            "operation that is not deterministic."
        )
    return f"{begin}, {bad} is {'not finite' if gap.joined else first}{batch}. {gap_text(place, gap)}"


_MESSAGES_OF_FAILURES = {
    Verdict.EXCEPTION: "An exception ended the run. All numbers that were looked at were finite.",
    Verdict.SIGNAL: "A signal ended the run. All numbers that were looked at were finite.",
}


def _operation_text(operation: Operation) -> str:
    direction = f" (backward of {operation.node})" if operation.node else ""
    at = f" at {operation.source}" if operation.source else ""
    return f"The operation is {operation.name}{direction}{at}."
