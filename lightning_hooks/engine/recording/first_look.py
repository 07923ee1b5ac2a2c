"""The record of what the numbers of a step alone tell: which call gave the first bad number, and what was bad before."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lightning_hooks.engine.recording.batches import KeptBatch
from lightning_hooks.engine.recording.call_recorder import Moment, Recorder
from lightning_hooks.engine.recording.failures import failure_of
from lightning_hooks.engine.recording.summaries import summary
from lightning_hooks.engine.rerun.training import Training
from lightning_hooks.nested.tensors import named_tensors
from lightning_hooks.recorder.calls import Calls
from lightning_hooks.recorder.gaps import between
from lightning_hooks.recorder.record import FlightRecord, Gap, Growth, Place, TensorSummary, TrailEntry, Verdict
from lightning_hooks.recorder.verdicts import Sight, message_of, verdict_of
from lightning_hooks.tensor_kinds import held_part, is_sharded

_FORWARD: Final = ("output", "loss")
_BACKWARD: Final = ("output_grad",)
_ROOTS: Final = ("exp_avg_sq", "square_avg", "sum")
"""The entries of an optimizer's state of which it takes a square root."""
_UNSEEN: Final = (
    "The parameters are sharded: this rank has looked at what it holds itself, and a number may have been bad on another rank "
    "before, which rank-*.json tell."
)


def seen(
    recorder: Recorder, loop: Training, kept: KeptBatch | None, moment: Moment, optimizer: Optimizer | None, most: int
) -> FlightRecord:
    """The record of a number that is not finite.

    Args:
        recorder: has noted the calls.
        loop: the loop that trains.
        kept: the batch under way; None if it is not known.
        moment: when the number was seen.
        optimizer: whose step is under way.
        most: the number of calls in the trail.
    """
    calls = recorder.calls()
    has_loss = moment != "gradients" or recorder.has_loss
    position = None
    # A bad output is earlier than any bad gradient. It has not reached the loss if the loss is known to be finite.
    if moment == "loss" or not has_loss:
        position = calls.first_bad(recorder.step, recorder.usual, _FORWARD)
    if moment != "loss" and position is None:
        position = calls.first_bad(recorder.step, recorder.usual, _BACKWARD)
    culprit, gap = (None, None) if position is None else _culprit(calls, position, loop)
    sight = replace(_look(recorder, loop, kept, moment, optimizer), call=culprit, gap=gap)
    verdict = verdict_of(sight)
    place = _place(verdict, sight, recorder, loop)
    end = len(calls.entries) if position is None else position + 1
    inputs = {Verdict.BATCH: sight.bad_batch, Verdict.WEIGHTS: sight.bad_weights, Verdict.UPDATE: sight.bad_state}
    record = FlightRecord(
        verdict,
        recorder.step,
        place,
        message_of(verdict, place, None, recorder.finite_until, has_loss=has_loss),
        inputs=inputs.get(verdict, ()),
        trail=calls.named(end - most, end),
        context=loop.facts(),
        notes=(_UNSEEN,) if any(map(is_sharded, loop.model.parameters())) else (),
    )
    return replace(record, growth=growth_of(record, recorder))


def ended(recorder: Recorder, loop: Training, error: BaseException, most: int) -> FlightRecord:
    """The record of an exception that ends the run."""
    failure = failure_of(error, loop.model)
    verdict = (
        Verdict.SIGNAL if isinstance(error, (KeyboardInterrupt, SystemExit)) or "SIG" in failure.type else Verdict.EXCEPTION
    )
    of_module = (failure.module, loop.type_of(failure.module), failure.direction, "output", 0)
    place = Place(*of_module, recorder.micro_batch, recorder.step, loop.rank, loop.world_size)
    calls = recorder.calls()
    record = FlightRecord(
        verdict,
        recorder.step,
        place,
        message_of(verdict, None, None),
        trail=calls.named(len(calls.entries) - most),
        context=loop.facts(),
        failure=failure,
    )
    return replace(record, growth=growth_of(record, recorder))


def growth_of(record: FlightRecord, recorder: Recorder) -> Growth | None:
    """The largest magnitudes, at the last steps, of the row of a record's place."""
    place = record.place
    if place is None:
        return None
    if place.tensor in ("loss", "batch"):
        return recorder.growth_of("loss", "loss")
    names = (place.module, place.module.rpartition(".")[0])
    tensors = (place.tensor, "output", "grad")
    found = (recorder.growth_of(name, tensor) for name in names for tensor in tensors)
    return next((growth for growth in found if growth is not None), None)


def _culprit(calls: Calls, position: int, loop: Training) -> tuple[TrailEntry, Gap]:
    """The call that most likely made the first bad number, and the code that may have made it instead.

    The gradient of an output is made by what came after that output: by the module whose gradient was noted just before.
    """
    entry = calls.named(position, position + 1)[0]
    codeless, is_joined = _codeless(loop.model), calls.is_joined(position)
    if entry.tensor != "output_grad":
        last = calls.before(position, "output")
        name = None if last is None else last.name
        modules = () if entry.tensor == "loss" or is_joined else between(name, entry.name, codeless)
        return entry, Gap(name or "", entry.name, modules, is_joined)
    last = calls.before(position, "output_grad")
    if last is None or last.nonfinite:
        last = replace(entry, name="", call=0)
    modules = () if is_joined else between(entry.name, last.name or entry.name, codeless)
    return last, Gap(entry.name, entry.name, modules, is_joined)


def _codeless(model: nn.Module) -> frozenset[str]:
    """The names of the modules that call their children, and do nothing else."""
    forwards = (nn.Module.forward, nn.Sequential.forward)
    return frozenset(name for name, module in model.named_modules() if type(module).forward in forwards)


def _gradients(recorder: Recorder, parameters: Mapping[str, nn.Parameter]) -> Iterator[TensorSummary]:
    """The gradients of parameters that are not finite. One step late they are gone: then their names and shapes."""
    for name in recorder.bad_names("grad"):
        parameter = parameters.get(name)
        gradient = None if parameter is None or not recorder.is_immediate else parameter.grad
        shape, dtype = ((), "") if parameter is None else (tuple(parameter.shape), str(parameter.dtype).removeprefix("torch."))
        yield TensorSummary(name, shape, dtype) if gradient is None else summary(name, gradient)


def _look(
    recorder: Recorder,
    loop: Training,
    kept: KeptBatch | None,
    moment: Moment,
    optimizer: Optimizer | None,
) -> Sight:
    has_updated = moment == "parameters"
    parameters = dict(loop.model.named_parameters())
    bad = tuple(_bad(parameters.items()))
    # One step late, the update of the step has spoiled the parameters.
    tells_before = recorder.is_immediate and not has_updated
    return Sight(
        moment,
        recorder.step,
        bad_batch=() if kept is None else tuple(_bad(named_tensors(kept.batch))),
        bad_weights=bad if tells_before else (),
        bad_state=tuple(_suspect(_state_of(optimizer, parameters))) if has_updated else (),
        bad_gradients=tuple(_gradients(recorder, parameters)),
        bad_parameters=bad if has_updated else (),
        world_size=loop.world_size,
    )


def _place(verdict: Verdict, sight: Sight, recorder: Recorder, loop: Training) -> Place:
    batch, process = recorder.micro_batch, (loop.rank, loop.world_size)
    if verdict is Verdict.UPDATE:
        updated = next(iter(sight.bad_parameters), None)
        name = "" if updated is None else updated.name
        return Place(name, loop.type_of_owner(name), "update", "param", 0, batch, sight.step, *process, updated)
    if verdict is Verdict.WEIGHTS:
        first = sight.bad_weights[0]
        return Place(first.name, loop.type_of_owner(first.name), "forward", "param", 0, batch, sight.step, *process, first)
    if verdict is Verdict.BATCH:
        return Place("", "", "forward", "batch", 0, batch, sight.step, *process, sight.bad_batch[0])
    call = sight.call
    if call is not None:
        name = "" if call.tensor == "loss" else call.name
        direction = "forward" if call.tensor in _FORWARD else "backward"
        where = (name, loop.type_of(name), direction, call.tensor, call.call, call.micro_batch, sight.step)
        return Place(*where, *process, gap=sight.gap)
    if sight.moment == "loss":
        return Place("", "", "forward", "loss", 0, batch, sight.step, *process)
    gradient = next(iter(sight.bad_gradients), None)
    owner = "" if gradient is None else gradient.name.rpartition(".")[0]
    # One step late, only the name of the gradient is known.
    result = gradient if gradient is not None and gradient.nonfinite else None
    return Place(owner, loop.type_of(owner), "backward", "grad", 0, batch, sight.step, *process, result)


def _bad(tensors: Iterable[tuple[str, Tensor]]) -> list[TensorSummary]:
    """The summaries of tensors that are not finite, of sharded ones on this rank."""
    named = ((name, each.detach()) for name, each in tensors if each.is_floating_point() or each.is_complex())
    return [summary(name, each) for name, each in named if not bool(torch.isfinite(held_part(each)).all())]


def _state_of(optimizer: Any, parameters: dict[str, Any]) -> Iterable[tuple[str, Tensor]]:
    """The tensors of an optimizer's state, named by their keys and parameters."""
    names = {id(each): name for name, each in parameters.items()}
    for parameter, values in getattr(optimizer, "state", {}).items():
        for key, value in values.items():
            if isinstance(value, Tensor) and value.is_floating_point():
                yield f"state.{key} of {names.get(id(parameter), 'a stranger')}", value


def _suspect(state: Iterable[tuple[str, Tensor]]) -> list[TensorSummary]:
    """The summaries of a state that is not finite, or below 0 where the optimizer takes a root."""
    found = [summary(name, each) for name, each in state]
    return [each for each in found if each.nonfinite or ((each.minimum or 0) < 0 and each.name.split()[0].endswith(_ROOTS))]
