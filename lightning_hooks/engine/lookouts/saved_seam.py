"""What a checkpoint keeps of optimizers and schedules, so that a fit that goes on from it can compare: step counts, norms."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor

from lightning_hooks.engine.lookouts.surroundings import Surroundings
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
    """The optimizers and schedules of a fit between two steps.

    Args:
        step: the number of the step that comes next.
        optimizers: in the order of the fit.
        schedules: likewise.
    """

    step: int
    optimizers: tuple[OptimizerState, ...] = ()
    schedules: tuple[ScheduleState, ...] = ()


class PendingOptimizer:
    """The state of an optimizer, whose norms may still be computed by a device: making this object waits for none.

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
        self._copies: list[tuple[list[str | None], HostCopy]] = []
        self._counts = [float(state[_STEP]) for _, state in states if isinstance(state.get(_STEP), (int, float))]
        # Ranks may hold different shards of a state, whose norms depend on the number of ranks.
        is_whole = world_size() == 1
        self._begin([each for each in _tensors(states) if is_whole or each[0] is None])

    @torch.no_grad()
    def _begin(self, tensors: Sequence[tuple[str | None, Tensor]]) -> None:
        by_device: dict[torch.device, list[tuple[str | None, Tensor]]] = defaultdict(list)
        for name, tensor in tensors:
            by_device[tensor.device].append((name, tensor))
        for each in by_device.values():
            norms = [tensor.float().reshape(()) if name is None else _norm(tensor) for name, tensor in each]
            self._copies.append(([name for name, _ in each], begin_copy(torch.stack(norms))))

    @property
    def ready(self) -> bool:
        """Whether `read` returns without waiting for a device."""
        return all(copy.ready or copy.has_arrived for _, copy in self._copies)

    def read(self) -> OptimizerState:
        """The state; waits for the device if it is not ready."""
        squares: dict[str, float] = {}
        counts = list(self._counts)
        for names, copy in self._copies:
            for name, norm in zip(names, copy.wait().tolist(), strict=True):
                if name is None:
                    counts.append(norm)
                else:
                    squares[name] = squares.get(name, 0.0) + norm**2
        moments = {name: square**0.5 for name, square in squares.items()}
        count = max(filter(math.isfinite, counts), default=-1.0)
        return OptimizerState(self.type, self._rates, self.parameters, self.held, int(count), moments)


def state_of(optimizer: Any, parameter: Tensor) -> Mapping[str, Any]:
    """What an optimizer keeps for a parameter; empty if it keeps nothing."""
    states = getattr(optimizer, "state", None)
    state = states.get(parameter) if isinstance(states, Mapping) else None
    return state if isinstance(state, Mapping) else {}


def seam_of(around: Surroundings, step: int) -> Seam:
    """The optimizers and schedules of now; waits for devices.

    Args:
        around: the code around the model.
        step: the number of the step that comes next.
    """
    names = around.names()
    # Let all devices compute before the first norm is waited for.
    pending = [PendingOptimizer(each, names) for each in around.optimizers() if hasattr(each, "param_groups")]
    return Seam(step, tuple(each.read() for each in pending), tuple(map(schedule_state, around.schedules())))


def schedule_state(schedule: Any) -> ScheduleState:
    """Where a schedule is; -1 if it counts nothing."""
    at = getattr(schedule, "last_epoch", -1)
    return ScheduleState(type(schedule).__name__, at if isinstance(at, int) else -1)


def _tensors(states: Sequence[tuple[str, Mapping[str, Any]]]) -> Iterator[tuple[str | None, Tensor]]:
    """The tensors of states that can be compared, each with the name of its parameter; None for a step count."""
    for name, state in states:
        for key, value in state.items():
            if not isinstance(value, Tensor) or not is_dense(value) or value.is_meta:
                continue
            if key == _STEP and value.numel() == 1:
                yield None, value
            elif name and value.dtype in _COMPARED and value.numel():
                yield name, value


def _norm(tensor: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(tensor.detach().float())
    return norm


def _on_host(value: Any) -> float:
    if isinstance(value, Tensor):
        return float(value) if value.device.type == "cpu" and value.numel() == 1 else float("nan")
    return float(value) if isinstance(value, (int, float)) else float("nan")
