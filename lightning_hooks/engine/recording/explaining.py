"""The autopsy of a step that was run again: the verdict, the operation and its operands, from the origin of a bad tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch

from lightning_hooks.engine.recording.bad_tensors import BadTensor
from lightning_hooks.engine.recording.origins import Birth, Leaf, Origin
from lightning_hooks.recorder.record import Operation, Place, TensorSummary, Verdict

_VERDICTS: Final = {"forward": Verdict.FORWARD, "backward": Verdict.BACKWARD, "update": Verdict.UPDATE}

_POLES: Final = frozenset({"div", "reciprocal", "rsqrt", "log", "log2", "log10", "log1p", "logit", "atanh", "pow", "tan"})
"""Operators that give infinities of small operands, not for lack of range: asked only of those that work in place."""


@dataclass(frozen=True)
class Autopsy:
    """The result of running a step again: whether a bad number appeared, and which operation or tensor it came from.

    Args:
        reproduced: whether the loss, a gradient or a parameter was not finite.
        verdict: `batch`, `weights`, `forward`, `backward`, `gradients` or `update`; None if nothing was bad.
        operation: the operation that made the first bad number; None if a tensor was bad before, or if it is not known.
        noticed: where the bad number was noticed: `loss`, `grad of layer.weight`; empty if nothing was bad.
        module: the dotted name of the module of the operation; for `weights`, `gradients` and `update` that of the parameter.
        type: the class of the module; empty outside all modules, and for a parameter.
        direction: `forward`, `backward` or `update`.
        tensor: `output`, `loss`, `grad`, `param`, `buffer`, `batch` or `state.KEY`.
        call: the number of the call of the module since the step began, from 0.
        result: the tensor with the first bad number.
        inputs: the operands of the operation; for `batch` and `weights` the tensors that were bad.
        exceeds_range: whether the first bad number is infinite because its type has no larger numbers; None if it is not known.
        notes: what else is known, and what could not be found out.
        seconds: how long the second run took.
        has_ended: whether the run came to its end. One that raised or took too long shows nothing else of the step.
    """

    reproduced: bool
    verdict: Verdict | None = None
    operation: Operation | None = None
    noticed: str = ""
    module: str = ""
    type: str = ""
    direction: str = ""
    tensor: str = ""
    call: int = 0
    result: TensorSummary | None = None
    inputs: tuple[TensorSummary, ...] = ()
    exceeds_range: bool | None = None
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    has_ended: bool = True

    def with_notes(self, notes: Sequence[str], seconds: float) -> Autopsy:
        """The same with notes before its own."""
        return replace(self, notes=(*notes, *self.notes), seconds=seconds)

    def place(self, step: int, micro_batch: int = 0, rank: int = 0, world_size: int = 1) -> Place | None:
        """The place for a flight record; None if nothing was bad."""
        if self.verdict is None:
            return None
        where = (self.module, self.type, self.direction, self.tensor, self.call)
        return Place(*where, micro_batch, step, rank, world_size, self.result)


def autopsy_of(bad: BadTensor, leaves: Sequence[Leaf]) -> Autopsy:
    """The autopsy of a step with a bad tensor, from the origin that the dispatch mode has followed.

    Args:
        bad: the tensor that is not finite.
        leaves: all tensors that were not finite when the step began.
    """
    notes = []
    if bad.total > 1:
        notes.append(f"{bad.kind}: {bad.count} of {bad.total} tensors are not finite")
    origin = bad.origin
    if isinstance(origin, Leaf):
        return _bad_before(bad, origin, leaves, notes)
    if origin is None:
        notes.append("no operator of torch was seen to make the bad numbers")
        direction = {"loss": "forward", "grad": "backward"}.get(bad.kind, "update")
        found = Autopsy(True, _VERDICTS[direction], None, bad.shown, bad.name, direction=direction)
        return replace(found, tensor=bad.kind, result=bad.result, notes=tuple(notes))
    # Code that is no part of a backward pass, such as clipping, has made the gradient.
    is_changed = bad.kind == "grad" and origin.direction != "backward"
    verdict = Verdict.FORWARD if bad.kind == "loss" else Verdict.GRADIENTS if is_changed else _VERDICTS[origin.direction]
    is_update = verdict in (Verdict.UPDATE, Verdict.GRADIENTS)
    return Autopsy(
        True,
        verdict,
        origin.operation(),
        bad.shown,
        bad.name if is_update else origin.call.module,
        "" if is_update else origin.call.type,
        "update" if is_update else origin.direction,
        bad.kind if is_update else _tensor_of(origin),
        0 if is_update else origin.call.number,
        bad.result if is_update else origin.result,
        origin.inputs,
        _exceeds_range(origin),
        (*notes, *_remarks(origin)),
    )


def _bad_before(bad: BadTensor, leaf: Leaf, leaves: Sequence[Leaf], notes: list[str]) -> Autopsy:
    """The verdict on a tensor that was bad when the step began."""
    same = [each for each in leaves if (each.kind == "batch") is (leaf.kind == "batch")]
    is_state = leaf.kind.startswith("state.")
    known = {"batch": Verdict.BATCH, "grad": Verdict.BACKWARD}
    verdict = Verdict.UPDATE if is_state else known.get(leaf.kind, Verdict.WEIGHTS)
    if leaf.kind == "grad":
        notes.append("the gradient was not finite when the step began")
    return Autopsy(
        True,
        verdict,
        None,
        bad.shown,
        "" if leaf.kind == "batch" else leaf.name,
        direction="backward" if leaf.kind == "grad" else "update" if is_state else "forward",
        tensor=leaf.kind,
        result=leaf.summary,
        inputs=tuple(each.summary for each in same),
        notes=tuple(notes),
    )


def _tensor_of(birth: Birth) -> str:
    if birth.direction == "backward":
        return "grad"
    return "output" if birth.call.type else "loss"


def _remarks(birth: Birth) -> list[str]:
    remarks = [f"its argument {name} is {value}" for name, value in birth.scalars.items()]
    remarks += birth.remarks
    if birth.is_intended:
        remarks.append("the infinity comes from a literal, as masks do, and reached the loss")
    overflow = _overflow(birth)
    if overflow:
        remarks.append(overflow)
    if birth.cause is not None:
        remarks.append(_cause(birth.cause))
    return remarks


def _exceeds_range(birth: Birth) -> bool | None:
    """Whether the result is infinite for lack of range."""
    is_infinite = not birth.result.nan and birth.result.nonfinite > 0 and not birth.scalars
    if birth.exceeds_range is not None or not is_infinite:
        return birth.exceeds_range
    if any(each.nonfinite for each in birth.inputs):
        return False
    # An operator in place has overwritten what it read.
    return birth.operator.partition(".")[2].strip("_") not in _POLES


def _overflow(birth: Birth) -> str:
    """How far the operands are below the largest number of their type, if a result of this type overflowed."""
    result = birth.result
    largest = [each.abs_max for each in birth.inputs if each.abs_max is not None]
    dtype = getattr(torch, result.dtype)
    if not _exceeds_range(birth) or not largest or not dtype.is_floating_point:
        return ""
    limit, most = torch.finfo(dtype).max, max(largest)
    if most <= 1 or math.isinf(limit):
        return ""
    return f"{result.dtype} ends at {limit:.4g}; the operands reach {most:.4g}, {limit / most:.3g} times below that"


def _cause(cause: Origin) -> str:
    if isinstance(cause, Leaf):
        return f"it read {cause.name}, which was not finite when the step began"
    place = f" in {cause.call.module}" if cause.call.module else ""
    line = f" ({cause.line.source})" if cause.line else ""
    return f"it read an infinity of the forward pass that the loss does not contain: {cause.operator}{place}{line}"
