"""What a checkpoint keeps of a fit, so that one that goes on from it can compare: step counts, rates, norms."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor

from lightning_hooks.engine.lookouts.generators import Begins, GeneratorState, states_of
from lightning_hooks.engine.lookouts.surroundings import Surroundings
from lightning_hooks.rules.patterns import named_parameters
from lightning_hooks.stats.host_copy import HostCopy, begin_copy
from lightning_hooks.stats.processes import world_size
from lightning_hooks.tensor_kinds import is_dense

_STEP: Final = "step"
"""The key of the step count in the state of a parameter, in the optimizers of PyTorch."""
_COMPARED: Final = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
"""The number formats of the tensors whose norms are kept."""


@dataclass(frozen=True)
class OptimizerState:
    """The state of one optimizer.

    Args:
        type: the name of its class.
        rates: of its groups; NaN if a rate is not on the host.
        parameters: the number of its parameters.
        held: the number of its parameters that have a state.
        count: the largest step count of its parameters; -1 if it keeps none.
        moments: the norm of the tensors in the state of each parameter, by the name of the parameter.
    """

    type: str
    rates: tuple[float, ...] = ()
    parameters: int = 0
    held: int = 0
    count: int = -1
    moments: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class ScheduleState:
    """Where one schedule of learning rates is.

    Args:
        type: the name of its class.
        at: its `last_epoch`, which counts its advances.
    """

    type: str
    at: int


@dataclass(frozen=True)
class Seam:
    """The optimizers, schedules and weights of a fit between two steps.

    Args:
        step: the number of the step that comes next.
        optimizers: in the order of the fit.
        schedules: likewise.
        weights: the norm of each parameter of the model.
        generators: of random numbers.
        batches: how many batches of an epoch were trained; 0 between two epochs.
    """

    step: int
    optimizers: tuple[OptimizerState, ...] = ()
    schedules: tuple[ScheduleState, ...] = ()
    weights: Mapping[str, float] = field(default_factory=dict)
    generators: tuple[GeneratorState, ...] = ()
    batches: int = 0


class PendingNumbers:
    """Numbers of tensors that a device may still compute: making this object waits for none.

    Args:
        tensors: each with its name, of which the norm is wanted, or with None for a tensor that is the number.
    """

    @torch.no_grad()
    def __init__(self, tensors: Iterable[tuple[str | None, Tensor]]) -> None:
        self._copies: list[tuple[list[str | None], HostCopy]] = []
        by_device: dict[torch.device, list[tuple[str | None, Tensor]]] = defaultdict(list)
        for name, tensor in tensors:
            by_device[tensor.device].append((name, tensor))
        for each in by_device.values():
            numbers = [tensor.float().reshape(()) if name is None else _norm(tensor) for name, tensor in each]
            self._copies.append(([name for name, _ in each], begin_copy(torch.stack(numbers))))

    @property
    def ready(self) -> bool:
        """Whether `read` returns without waiting for a device."""
        return all(copy.ready or copy.has_arrived for _, copy in self._copies)

    def read(self) -> tuple[dict[str, float], list[float]]:
        """The norm by name, of all tensors of a name together, and the other numbers; waits if they are not ready."""
        squares: dict[str, float] = {}
        others = []
        for names, copy in self._copies:
            for name, number in zip(names, copy.wait().tolist(), strict=True):
                if name is None:
                    others.append(number)
                else:
                    squares[name] = squares.get(name, 0.0) + number**2
        return {name: square**0.5 for name, square in squares.items()}, others


class PendingOptimizer:
    """The state of an optimizer, whose norms may still be computed by a device.

    Args:
        optimizer: the optimizer.
        names: the names of the parameters of the model, by their ids.
    """

    def __init__(self, optimizer: Any, names: Mapping[int, str]) -> None:
        parameters = [each for group in optimizer.param_groups for each in group["params"]]
        states = [(names.get(id(each), ""), state) for each in parameters if (state := state_of(optimizer, each))]
        self.type = type(optimizer).__name__
        self.parameters, self.held = len(parameters), len(states)
        self._rates = tuple(_on_host(group.get("lr")) for group in optimizer.param_groups)
        self._counts = [float(state[_STEP]) for _, state in states if isinstance(state.get(_STEP), (int, float))]
        # Ranks may hold different shards of a state, whose norms depend on the number of ranks.
        is_whole = world_size() == 1
        self._numbers = PendingNumbers(each for each in _tensors(states) if is_whole or each[0] is None)

    @property
    def ready(self) -> bool:
        """Whether `read` returns without waiting for a device."""
        return self._numbers.ready

    def read(self) -> OptimizerState:
        """The state; waits for the device if it is not ready."""
        moments, counts = self._numbers.read()
        count = max(filter(math.isfinite, [*self._counts, *counts]), default=-1.0)
        return OptimizerState(self.type, self._rates, self.parameters, self.held, int(count), moments)


def pending_weights(around: Surroundings) -> PendingNumbers:
    """The norms of the parameters of the model; none of several ranks, which may hold shards."""
    model = around.model()
    known = [] if model is None or world_size() > 1 else named_parameters(model)
    return PendingNumbers((each.name, each.value) for each in known if _has_norm(each.value))


def state_of(optimizer: Any, parameter: Tensor) -> Mapping[str, Any]:
    """What an optimizer keeps for a parameter; empty if it keeps nothing."""
    states = getattr(optimizer, "state", None)
    state = states.get(parameter) if isinstance(states, Mapping) else None
    return state if isinstance(state, Mapping) else {}


def seam_of(around: Surroundings, step: int, begins: Begins) -> Seam:
    """The optimizers, schedules and weights of now; waits for devices.

    Args:
        around: the code around the model.
        step: the number of the step that comes next.
        begins: what is known of the generators at the begin of the training.
    """
    names = around.names()
    # Let all devices compute before the first norm is waited for.
    pending = [PendingOptimizer(each, names) for each in around.optimizers() if hasattr(each, "param_groups")]
    weights = pending_weights(around)
    states, schedules = tuple(each.read() for each in pending), tuple(map(schedule_state, around.schedules()))
    generators = states_of(around, begins, ahead=True)
    return Seam(step, states, schedules, weights.read()[0], generators, around.batches())


def schedule_state(schedule: Any) -> ScheduleState:
    """Where a schedule is; -1 if it counts nothing."""
    at = getattr(schedule, "last_epoch", -1)
    return ScheduleState(type(schedule).__name__, at if isinstance(at, int) else -1)


def rates_of(schedule: Any) -> tuple[float, ...]:
    """The rates that a schedule has set last; NaN for one that is not on the host."""
    return tuple(
        float(each) if isinstance(each, (int, float)) else math.nan for each in getattr(schedule, "_last_lr", None) or ()
    )


def _tensors(states: Sequence[tuple[str, Mapping[str, Any]]]) -> Iterator[tuple[str | None, Tensor]]:
    """The tensors of states that can be compared, each with the name of its parameter; None for a step count."""
    for name, state in states:
        for key, value in state.items():
            if isinstance(value, Tensor) and key == _STEP and is_dense(value) and value.numel() == 1 and not value.is_meta:
                yield None, value
            elif name and isinstance(value, Tensor) and _has_norm(value):
                yield name, value


def _has_norm(tensor: Tensor) -> bool:
    return is_dense(tensor) and tensor.dtype in _COMPARED and tensor.numel() > 0 and not tensor.is_meta


def _norm(tensor: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(tensor.detach().float())
    return norm


def _on_host(value: Any) -> float:
    if isinstance(value, Tensor):
        return float(value) if value.device.type == "cpu" and value.numel() == 1 else float("nan")
    return float(value) if isinstance(value, (int, float)) else float("nan")
