"""Run a step again under a dispatch mode, and name the operation that made what is not finite in its loss or gradients."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lightning_hooks.engine.recording.module_calls import ModuleCalls
from lightning_hooks.engine.recording.origins import Birth, Leaf, Origin, OriginMap
from lightning_hooks.engine.recording.provenance import Provenance, StoppedEarly
from lightning_hooks.engine.recording.restoring import Generators
from lightning_hooks.engine.recording.symptoms import Symptom, Watched, bad_loss, note_bad_leaves
from lightning_hooks.errors import shortened
from lightning_hooks.recorder.record import Operation, Place, TensorSummary, Verdict

_OF_DIRECTION: Final = {"forward": Verdict.FORWARD, "backward": Verdict.BACKWARD, "update": Verdict.UPDATE}


@dataclass(frozen=True)
class Autopsy:
    """What a step that was run again shows.

    Args:
        reproduced: whether the loss, a gradient or a parameter was not finite.
        verdict: `batch`, `weights`, `forward`, `backward` or `update`; None if nothing was bad.
        operation: the operation that made the first bad number; None if a tensor was bad before, or if it is not known.
        symptom: where the bad number was noticed: `loss`, `grad of layer.weight`; empty if nothing was bad.
        module: the dotted name of the module of the operation; for `weights` and `update` that of the parameter.
        type: the class of the module; empty outside all modules, and for a parameter.
        direction: `forward`, `backward` or `update`.
        tensor: `output`, `loss`, `grad`, `param`, `buffer`, `batch` or `state.KEY`.
        call: the number of the call of the module since the step began, from 0.
        result: the tensor with the first bad number.
        inputs: the operands of the operation; for `batch` and `weights` the tensors that were bad.
        notes: what else is known, and what could not be found out.
        seconds: how long it took.
    """

    reproduced: bool
    verdict: Verdict | None = None
    operation: Operation | None = None
    symptom: str = ""
    module: str = ""
    type: str = ""
    direction: str = ""
    tensor: str = ""
    call: int = 0
    result: TensorSummary | None = None
    inputs: tuple[TensorSummary, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = 0.0

    def place(self, step: int, micro_batch: int = 0, rank: int = 0, world_size: int = 1) -> Place | None:
        """The place for a flight record; None if nothing was bad."""
        if self.verdict is None:
            return None
        where = (self.module, self.type, self.direction, self.tensor, self.call)
        return Place(*where, micro_batch, step, rank, world_size, self.result)


def autopsy(
    model: nn.Module,
    step: Callable[[], Tensor | None],
    *,
    batch: object = None,
    update: Callable[[], object] | None = None,
    optimizers: Sequence[Optimizer] = (),
    limit: float = 60.0,
) -> Autopsy:
    """Run a step again, and tell the origin of what is not finite in its loss, a gradient or a parameter.

    The step runs once, under a dispatch mode that looks at the result of every operator; compiled code runs eagerly. If nothing
    is bad, it runs once more as it is. Nothing is restored: call it inside `restored(model, …)`, with the generators as they
    were when the step began. Hooks and modes are removed also if the step raises.

    Args:
        model: names the modules and parameters. If it is wrapped, as by DDP, pass the module inside.
        step: runs forward and backward once; returns the loss, or None if it is not known.
        batch: what the step reads, so that a bad batch is told from a bad operation.
        update: updates the parameters once; runs if the step gave good numbers.
        optimizers: only gradients of their parameters count, and their state is looked at; if empty, all gradients count.
        limit: seconds after which the step is stopped; the result then says so.

    Example:
        >>> model = nn.Linear(2, 1)
        >>> def step():
        ...     loss = (model(torch.ones(4, 2)) * 0).log().mean()
        ...     loss.backward()
        ...     return loss
        >>> found = autopsy(model, step)
        >>> str(found.verdict), found.operation.name, found.operation.inputs[0].abs_max
        ('forward', 'aten.log', 0.0)
    """
    started = time.perf_counter()
    generators = Generators()
    origins, calls, watched = OriginMap(), ModuleCalls(model), Watched(model, optimizers)
    leaves = note_bad_leaves(watched, batch, origins)
    mode = Provenance(calls, origins, limit)
    symptom: Symptom | None = None
    notes: list[str] = []
    try:
        with _eagerly(), calls.followed(), mode:
            loss = run_step(step)
        symptom = _after_step(watched, origins, loss, mode)
        if symptom is None and update is not None:
            mode.is_update = True
            with mode:
                run_step(update)
        symptom = symptom or watched.bad_parameters(origins) or watched.bad_state(origins)
    except StoppedEarly as stopped:
        notes.append(str(stopped))
        symptom = _unfinished(mode, notes)
    except Exception as error:
        notes.append(f"the step raised {shortened(f'{type(error).__name__}: {error}', 300)}")
        symptom = _unfinished(mode, notes)
    if symptom is not None:
        found = _explained(symptom, leaves, mode)
    elif time.perf_counter() - started < limit / 2 and not notes:
        found = _run_as_it_is(watched, step, generators)
    else:
        found = Autopsy(reproduced=False)
    return replace(found, notes=(*notes, *found.notes), seconds=time.perf_counter() - started)


def run_step(step: Callable[[], object]) -> Tensor | None:
    """Run a step; `source_lines` looks for the user's code above the frame of this function."""
    loss = step()
    return loss if isinstance(loss, Tensor) else None


def _after_step(watched: Watched, origins: OriginMap, loss: Tensor | None, mode: Provenance) -> Symptom | None:
    return bad_loss(loss, mode.bad_roots, origins) or watched.bad_gradients(origins)


def _unfinished(mode: Provenance, notes: list[str]) -> Symptom | None:
    """The first NaN of a step that did not end; nothing shows whether it would have reached the loss."""
    if mode.bad_roots:
        return Symptom("loss", "", mode.bad_roots[0], None)
    first = next((birth for birth in mode.births if birth.has_nan), None)
    if first is None:
        return None
    notes.append("the step did not end: the first NaN is named, whether or not it reaches the loss")
    return Symptom("", "", first, first.result)


def _run_as_it_is(watched: Watched, step: Callable[[], Tensor | None], generators: Generators) -> Autopsy:
    """Run the step without the mode, in case that compiled or fused code gives other numbers than single operators."""
    generators.restore()
    try:
        loss = run_step(step)
    except Exception as error:
        return Autopsy(reproduced=False, notes=(f"the step raised {shortened(f'{type(error).__name__}: {error}', 300)}",))
    symptom = _after_step(watched, OriginMap(), loss, Provenance(ModuleCalls(nn.Module()), OriginMap(), 0.0))
    if symptom is None:
        return Autopsy(reproduced=False)
    is_loss = symptom.kind == "loss"
    return Autopsy(
        reproduced=True,
        verdict=Verdict.FORWARD if is_loss else Verdict.BACKWARD,
        symptom=_shown(symptom),
        direction="forward" if is_loss else "backward",
        tensor=symptom.kind,
        result=symptom.result,
        notes=("the numbers are finite when each operator runs alone, so compiled or nondeterministic code gave the bad ones",),
    )


def _explained(symptom: Symptom, leaves: Sequence[Leaf], mode: Provenance) -> Autopsy:
    notes = []
    if symptom.total > 1:
        notes.append(f"{symptom.kind}: {symptom.count} of {symptom.total} tensors are not finite")
    origin = symptom.origin
    if isinstance(origin, Leaf):
        return _bad_before(symptom, origin, leaves, notes)
    if origin is None:
        notes.append("no operator of torch was seen to make the bad numbers")
        direction = {"loss": "forward", "grad": "backward"}.get(symptom.kind, "update")
        found = Autopsy(True, _OF_DIRECTION[direction], None, _shown(symptom), symptom.name, direction=direction)
        return replace(found, tensor=symptom.kind, result=symptom.result, notes=tuple(notes))
    verdict = Verdict.FORWARD if symptom.kind == "loss" else _OF_DIRECTION[origin.direction]
    is_update = verdict is Verdict.UPDATE
    return Autopsy(
        True,
        verdict,
        origin.operation(),
        _shown(symptom),
        symptom.name if is_update else origin.call.module,
        "" if is_update else origin.call.type,
        origin.direction,
        symptom.kind if is_update else _tensor_of(origin),
        0 if is_update else origin.call.number,
        symptom.result if is_update else origin.result,
        origin.inputs,
        (*notes, *_remarks(origin)),
    )


def _bad_before(symptom: Symptom, leaf: Leaf, leaves: Sequence[Leaf], notes: list[str]) -> Autopsy:
    """The verdict on a tensor that was bad when the step began."""
    same = [each for each in leaves if (each.kind == "batch") is (leaf.kind == "batch")]
    verdict = Verdict.BATCH if leaf.kind == "batch" else Verdict.BACKWARD if leaf.kind == "grad" else Verdict.WEIGHTS
    if leaf.kind == "grad":
        notes.append("the gradient was not finite when the step began")
    return Autopsy(
        True,
        verdict,
        None,
        _shown(symptom),
        "" if leaf.kind == "batch" else leaf.name,
        direction="backward" if leaf.kind == "grad" else "forward",
        tensor=leaf.kind,
        result=leaf.summary,
        inputs=tuple(each.summary for each in same),
        notes=tuple(notes),
    )


def _tensor_of(birth: Birth) -> str:
    if birth.direction == "backward":
        return "grad"
    return "output" if birth.call.type else "loss"


def _shown(symptom: Symptom) -> str:
    return f"{symptom.kind} of {symptom.name}" if symptom.name else symptom.kind


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


def _overflow(birth: Birth) -> str:
    """How far the operands are below the largest number of their type, if a result of this type overflowed."""
    result = birth.result
    is_overflow = not result.nan and result.positive_infinite + result.negative_infinite and not birth.scalars
    largest = [each.abs_max for each in birth.inputs if each.abs_max is not None]
    dtype = getattr(torch, result.dtype)
    if not is_overflow or not largest or any(each.nonfinite for each in birth.inputs) or not dtype.is_floating_point:
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


def _eagerly() -> AbstractContextManager[object]:
    """Run compiled modules without their compiled code, whose operators a dispatch mode does not receive."""
    # Nothing is compiled before this module is imported; importing it takes seconds.
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()
