"""The record that is written at once, before a step runs again: it names the first call that gave a bad number."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lightning_hooks.engine.recording.batches import KeptBatch
from lightning_hooks.engine.recording.divisors import UNDER_ROOTS, zero_divisor
from lightning_hooks.engine.recording.failures import failure_of
from lightning_hooks.engine.recording.recorded_step import RecordedStep
from lightning_hooks.engine.recording.recorder import FoundIn
from lightning_hooks.engine.recording.starting_numbers import StartingNumbers
from lightning_hooks.engine.recording.summaries import summary
from lightning_hooks.engine.rerun.training import Training
from lightning_hooks.errors import listed
from lightning_hooks.nested.tensors import named_tensors
from lightning_hooks.recorder.calls import Calls
from lightning_hooks.recorder.gaps import between
from lightning_hooks.recorder.record import FlightRecord, Gap, Growth, Place, TensorSummary, TrailEntry, Verdict
from lightning_hooks.recorder.verdicts import Known, Observations, message_of, verdict_of
from lightning_hooks.tensor_kinds import held_part, is_sharded

_FORWARD: Final = ("output", "loss")
_BACKWARD: Final = ("output_grad",)
_ONLY_LOCAL: Final = (
    "The parameters are sharded: this rank has looked at what it holds itself, and a number may have been bad on another rank "
    "before, which rank-*.json tell."
)


def record_of_nonfinite(
    recorded: RecordedStep,
    training: Training,
    batch_of: Callable[[int, int], KeptBatch | None],
    start: StartingNumbers,
    found_in: FoundIn,
    optimizer: Optimizer | None,
    max_calls: int,
) -> FlightRecord:
    """The record of a number that is not finite.

    Args:
        recorded: the step.
        training: the model and its optimizers.
        batch_of: returns a batch by its step and its number in the step; None if it is not kept.
        start: knows what was not finite when the run began.
        found_in: the tensors that have the number.
        optimizer: whose update is under way.
        max_calls: the number of calls in the trail.
    """
    calls = recorded.calls
    has_loss = found_in != "gradients" or recorded.has_loss
    position = None
    # A bad output is earlier than any bad gradient. It has not reached the loss if the loss is known to be finite.
    if found_in == "loss" or not has_loss:
        position = calls.first_bad(recorded.step, recorded.tolerated_rows, _FORWARD)
    if found_in != "loss" and position is None:
        position = calls.first_bad(recorded.step, recorded.tolerated_rows, _BACKWARD)
    culprit, gap = (None, None) if position is None else _culprit(calls, position, training.model)
    kept = batch_of(recorded.step, recorded.micro_batch if culprit is None else culprit.micro_batch)
    observations = replace(_observations(recorded, training, kept, start, found_in, optimizer), call=culprit, gap=gap)
    verdict = verdict_of(observations)
    place = _place(verdict, observations, recorded, training)
    end = len(calls.entries) if position is None else position + 1
    inputs = {
        Verdict.BATCH: observations.bad_batch,
        Verdict.WEIGHTS: observations.bad_weights,
        Verdict.GRADIENTS: observations.bad_gradients,
        Verdict.UPDATE: observations.bad_state,
    }
    local = (_ONLY_LOCAL,) if any(map(is_sharded, training.model.parameters())) else ()
    record = FlightRecord(
        verdict,
        recorded.step,
        place,
        message_of(verdict, place, None, _known(observations, place, recorded, training, start, has_loss, optimizer)),
        inputs=inputs.get(verdict, ()),
        trail=calls.named(end - max_calls, end),
        context=training.facts(),
        notes=(*_notes_of_start(training, start), *local),
    )
    return replace(record, growth=growth_of(record, recorded))


def record_of_failure(recorded: RecordedStep, training: Training, error: BaseException, max_calls: int) -> FlightRecord:
    """The record of an exception that ends the run; arguments as of `record_of_nonfinite`."""
    failure = failure_of(error, training.model)
    verdict = (
        Verdict.SIGNAL if isinstance(error, (KeyboardInterrupt, SystemExit)) or "SIG" in failure.type else Verdict.EXCEPTION
    )
    module, tensor = failure.module or "", "" if failure.module is None else "output"
    type_name = "" if failure.module is None else training.type_of(module)
    at = (recorded.micro_batch, recorded.step, training.rank, training.world_size)
    place = Place(module, type_name, failure.direction, tensor, 0, *at)
    calls = recorded.calls
    record = FlightRecord(
        verdict,
        recorded.step,
        place,
        message_of(verdict, None, None),
        trail=calls.named(len(calls.entries) - max_calls),
        context=training.facts(),
        failure=failure,
    )
    return replace(record, growth=growth_of(record, recorded))


def growth_of(record: FlightRecord, recorded: RecordedStep) -> Growth | None:
    """The largest magnitudes, at the last steps, of the row of a record's place."""
    place = record.place
    if place is None or not place.tensor:
        return None
    if place.tensor in ("loss", "batch"):
        return recorded.growth_of("loss", "loss")
    names = (place.module, place.module.rpartition(".")[0])
    tensors = (place.tensor, "output", "grad")
    growths = (recorded.growth_of(name, tensor) for name in names for tensor in tensors)
    return next((growth for growth in growths if growth is not None), None)


def _culprit(calls: Calls, position: int, model: nn.Module) -> tuple[TrailEntry, Gap]:
    """The call that most likely made the first bad number, and the code that may have made it instead.

    The gradient of an output is made by what came after that output: by the module whose gradient was noted just before.
    """
    entry = calls.named(position, position + 1)[0]
    codeless, is_joined = _codeless(model), calls.is_joined(position)
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


def _bad_gradients(recorded: RecordedStep, parameters: Mapping[str, nn.Parameter]) -> Iterator[TensorSummary]:
    """The gradients of parameters that are not finite. For a late recorder they are gone: then their names and shapes."""
    for name in recorded.nonfinite_names("grad"):
        parameter = parameters.get(name)
        gradient = None if parameter is None or not recorded.is_immediate else parameter.grad
        shape, dtype = ((), "") if parameter is None else (tuple(parameter.shape), str(parameter.dtype).removeprefix("torch."))
        yield TensorSummary(name, shape, dtype) if gradient is None else summary(name, gradient)


def _observations(
    recorded: RecordedStep,
    training: Training,
    kept: KeptBatch | None,
    start: StartingNumbers,
    found_in: FoundIn,
    optimizer: Optimizer | None,
) -> Observations:
    has_updated = found_in == "parameters"
    parameters = dict(training.model.named_parameters())
    # An update changes the parameters of optimizers only: one that is frozen may have been bad all along.
    held = {id(each) for held_by in training.optimizers for group in held_by.param_groups for each in group["params"]}
    updated = {name: each for name, each in parameters.items() if id(each) in held} or parameters
    bad = tuple(_bad((updated if has_updated else parameters).items()))
    bad_gradients = tuple(_bad_gradients(recorded, parameters))
    if has_updated:
        bad_weights = tuple(each for each in bad if each.name in start.nonfinite)
        if recorded.is_immediate and recorded.has_read_gradients:
            bad_gradients = tuple(_bad((name, each.grad) for name, each in updated.items() if each.grad is not None))
    else:
        # A late recorder looks after the update, which has made parameters bad that were finite before.
        bad_weights = bad if recorded.is_immediate else ()
    return Observations(
        found_in,
        recorded.step,
        bad_batch=() if kept is None else tuple(_bad(named_tensors(kept.batch))),
        bad_weights=bad_weights,
        bad_state=tuple(_suspicious(_state_of(optimizer, parameters))) if has_updated else (),
        bad_gradients=bad_gradients,
        bad_parameters=bad if has_updated else (),
        world_size=training.world_size,
    )


def _known(
    observations: Observations,
    place: Place,
    recorded: RecordedStep,
    training: Training,
    start: StartingNumbers,
    has_loss: bool,
    optimizer: Optimizer | None,
) -> Known:
    return Known(
        loss=False if observations.found_in == "loss" else True if has_loss else None,
        finite_until=recorded.last_finite.step_of(training.tensor_of(place.module)),
        since_start=place.module in start.nonfinite,
        state=_nonfinite_keys(observations.bad_state, place.module),
        divisor=zero_divisor(training.optimizers, training.tensor_of(place.module)),
        may_write=optimizer is None or not type(optimizer).step.__module__.startswith("torch.optim."),
    )


def _notes_of_start(training: Training, start: StartingNumbers) -> tuple[str, ...]:
    """What was not finite when the run began. A buffer with −Inf alone is a mask."""
    masks = (each.name for each in _bad(training.model.named_buffers()) if not (each.nan or each.positive_infinite))
    names = sorted(start.nonfinite.difference(masks))
    return (f"Not finite when the run began: {listed(names, 3)}.",) if names else ()


def _nonfinite_keys(bad_state: Iterable[TensorSummary], parameter: str) -> tuple[str, ...]:
    """The keys, such as `exp_avg`, of what is not finite in an optimizer's state for one parameter."""
    named = (each.name.removeprefix("state.").partition(" of ") for each in bad_state if each.nonfinite)
    return tuple(key for key, _, name in named if name == parameter)


def _place(verdict: Verdict, observations: Observations, recorded: RecordedStep, training: Training) -> Place:
    batch, process = recorded.micro_batch, (training.rank, training.world_size)
    if verdict is Verdict.UPDATE:
        updated = next(iter(observations.bad_parameters), None)
        name = "" if updated is None else updated.name
        return Place(name, training.type_of_owner(name), "update", "param", 0, batch, observations.step, *process, updated)
    if verdict is Verdict.GRADIENTS:
        first = observations.bad_gradients[0]
        of_gradient = (first.name, training.type_of_owner(first.name), "update", "grad", 0)
        return Place(*of_gradient, batch, observations.step, *process, first)
    if verdict is Verdict.WEIGHTS:
        first = observations.bad_weights[0]
        of_parameter = (first.name, training.type_of_owner(first.name), "forward", "param", 0)
        return Place(*of_parameter, batch, observations.step, *process, first)
    if verdict is Verdict.BATCH:
        return Place("", "", "forward", "batch", 0, batch, observations.step, *process, observations.bad_batch[0])
    call = observations.call
    if call is not None:
        name = "" if call.tensor == "loss" else call.name
        direction = "forward" if call.tensor in _FORWARD else "backward"
        where = (name, training.type_of(name), direction, call.tensor, call.call, call.micro_batch, observations.step)
        return Place(*where, *process, gap=observations.gap)
    if observations.found_in == "loss":
        return Place("", "", "forward", "loss", 0, batch, observations.step, *process)
    gradient = next(iter(observations.bad_gradients), None)
    owner = "" if gradient is None else gradient.name.rpartition(".")[0]
    # A late recorder knows only the name of the gradient.
    result = gradient if gradient is not None and gradient.nonfinite else None
    return Place(owner, training.type_of(owner), "backward", "grad", 0, batch, observations.step, *process, result)


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


def _suspicious(state: Iterable[tuple[str, Tensor]]) -> list[TensorSummary]:
    """The summaries of a state that is not finite, or below 0 where the optimizer takes a root."""

    def is_suspicious(numbers: TensorSummary) -> bool:
        is_under_root = numbers.name.split()[0].endswith(UNDER_ROOTS)
        return numbers.nonfinite > 0 or (is_under_root and (numbers.minimum or 0) < 0)

    return [numbers for name, each in state if is_suspicious(numbers := summary(name, each))]
