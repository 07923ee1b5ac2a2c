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
        bad_gradients: the gradients that are not finite; after the update, those that it has read.
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
    if observations.bad_weights:
        return Verdict.WEIGHTS
    if observations.found_in == "parameters":
        return Verdict.GRADIENTS if observations.bad_gradients else Verdict.UPDATE
    if observations.found_in == "loss" or (observations.call is not None and observations.call.tensor == "output"):
        return Verdict.BATCH if observations.bad_batch else Verdict.FORWARD
    is_local = observations.call is not None
    return Verdict.BACKWARD if is_local or observations.world_size == 1 else Verdict.ALL_REDUCE


@dataclass(frozen=True)
class Known:
    """What was measured beside the first bad number, and what the words may say because of it.

    Args:
        loss: whether the loss is finite; None if it is not known.
        is_shown: whether the step, or its update, was run again and gave the same.
        finite_until: the last step after whose update the tensor of the place was finite; None if it was not measured.
        since_start: whether the tensor of the place was not finite when the run began.
        divisor: a sentence on what the update divided by, if that was 0; empty otherwise.
        state: what is not finite in the state of the optimizer for the parameter of the place, such as `exp_avg`.
        may_write: whether the step of the optimizer may write into gradients. The optimizers of torch only read them.
    """

    loss: bool | None = True
    is_shown: bool = False
    finite_until: int | None = None
    since_start: bool = False
    divisor: str = ""
    state: tuple[str, ...] = ()
    may_write: bool = False


def message_of(verdict: Verdict, place: Place | None, operation: Operation | None, known: Known | None = None) -> str:
    """The verdict in one or two sentences, which say nothing that was not measured.

    Args:
        verdict: the verdict.
        place: where; None if nothing was not finite.
        operation: what made the number, if it is known.
        known: what else was measured.

    Example:
        >>> message_of(Verdict.FORWARD, Place("head", "Head", "forward", "output", 0, 0, 12), None)
        'In the forward pass of step 12, head (Head) gave the first number that is not finite.'
    """
    if place is None:
        return _MESSAGES_OF_FAILURES.get(verdict, "")
    known = known or Known()
    where = f"{place.module or 'the model'}{f' ({place.type})' if place.type else ''}"
    call = f", at its call {place.call + 1}" if place.call else ""
    batch = f", in batch {place.micro_batch + 1} of the step" if place.micro_batch else ""
    by = "" if operation is None else f" {_operation_text(operation)}"
    step = place.step
    if operation is None and place.gap is not None and verdict in (Verdict.FORWARD, Verdict.BACKWARD, Verdict.NOT_REPRODUCED):
        return _message_of_calls(verdict, place, place.gap, where, call, batch, known.loss)
    match verdict:
        case Verdict.BATCH:
            return f"The batch of step {step} has elements that are not finite{_reached(known)}{batch}.{by}"
        case Verdict.WEIGHTS:
            return f"{_weights_text(place, where, known)}{by}"
        case Verdict.FORWARD:
            return f"In the forward pass of step {step}, {where} gave the first number that is not finite{call}{batch}.{by}"
        case Verdict.BACKWARD:
            begin = _loss_text(step, known.loss)
            if operation is None and place.tensor == "grad":
                return f"{begin} {_gradient_text(where, batch, known)}"
            return f"{begin} In its backward pass, {where} gave the first number that is not finite{call}{batch}.{by}"
        case Verdict.GRADIENTS:
            is_shown = known.is_shown and operation is None
            begin = "are finite when its backward pass runs again" if is_shown else "were finite after its backward pass"
            # The backward pass may give other numbers each time. What was measured after it leaves no choice.
            other = " or an operation that is not deterministic," if is_shown else ""
            after = "after the step of the optimizer" if known.may_write else "when the optimizer had read it"
            other = " or the step itself" if known.may_write else other
            return (
                f"The gradients of step {step} {begin}, and that of {where} was not {after}: code in between, such as "
                f"clipping,{other} made it so.{by}"
            )
        case Verdict.UPDATE:
            divisor = f" {known.divisor}" if known.divisor else ""
            return f"The gradients of step {step} are finite{_update_text(where, known)}{by}{divisor}"
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


def _loss_text(step: int, is_finite: bool | None) -> str:
    if is_finite is None:
        return f"It is not known whether the loss of step {step} is finite."
    return f"The loss of step {step} is {'' if is_finite else 'not '}finite."


def _reached(known: Known) -> str:
    """How far the bad elements of a batch got."""
    if known.loss is None:
        return ""
    if known.loss:
        return "; the loss is finite, and its gradient is not"
    return ", and they reached the loss" if known.is_shown else ", and its loss is not finite"


def _weights_text(place: Place, where: str, known: Known) -> str:
    began = f"{where} was not finite before step {place.step} began."
    if known.since_start:
        return f"{began} It was not finite when the run began."
    return began if known.finite_until is None else f"{began} It was finite after the update of step {known.finite_until}."


def _gradient_text(where: str, batch: str, known: Known) -> str:
    """The sentence on the gradient of a parameter. Without a second run, code after the backward pass may have changed it."""
    if known.is_shown:
        return f"In its backward pass, the gradient of a parameter of {where} is the first that is not finite{batch}."
    return (
        f"The gradient of a parameter of {where} is not finite when the optimizer reads it: a backward pass made it so, or "
        "code that changed it afterwards, such as clipping."
    )


def _update_text(where: str, known: Known) -> str:
    """The end of a sentence on finite gradients. Without a second run, code before the update may have made the number."""
    state, verb = " and ".join(known.state), "is" if len(known.state) == 1 else "are"
    if known.is_shown:
        by = f" by {state} in its state, which {verb} not finite" if state else ""
        return f", and the optimizer's update made {where} not finite{by}."
    nor = f", nor {verb} {state} in its state" if state else ""
    before = "" if known.finite_until is None else f" The parameter was finite after the update of step {known.finite_until}."
    return f". After the optimizer's update, {where} is not{nor}.{before}"


def _message_of_calls(verdict: Verdict, place: Place, gap: Gap, where: str, call: str, batch: str, loss: bool | None) -> str:
    """What the calls of layers alone show: between which two the number was made."""
    # Calls that are noted together may be of several batches.
    batch = "" if gap.joined else batch
    begin, bad = f"In the forward pass of step {place.step}", f"the output of {where}{call.removeprefix(',')}"
    first = "the first that is not finite"
    if place.direction == "backward":
        begin = f"{_loss_text(place.step, loss)} In its backward pass"
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
