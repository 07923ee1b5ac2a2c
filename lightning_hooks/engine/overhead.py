"""What watching costs: the time of everybody who works on a step, and the share of the step that one monitor takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import lru_cache
from statistics import median
from time import perf_counter
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lightning_hooks.hooks import Gate, Handles, HookSite, ModuleHooks, TensorAction

Clock = Callable[[], float]

LEAST_STEPS = 8
LEAST_WATCHED = 2
"""So many steps, and of them watched ones, are judged together: the first step of a run and a slow one say little alone."""
WIDEST = 2**20
_CALLS = 24
_EVICTED = 1 << 21  # bytes written between two calls of a hook: about what a core caches for itself


class Meter:
    """Adds up, per account, the seconds between entering and leaving it.

    Accounts exclude one another: who works on behalf of another (the hook manager that lets a monitor read gradients) stands
    still meanwhile, so nothing is counted twice. The clock is that of the process: work that an accelerator still has to do
    when a call returns is not in it, since to know it the device would have to be waited for.

    Args:
        clock: seconds from anywhere.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock: Clock = clock or perf_counter
        self.common = Account(self)  # what training costs whoever takes part
        self.aside = Account(self)  # the same in other stages
        self._entered: list[Account] = []
        self._since = 0.0
        self._began: float | None = None
        self._stopped: float | None = None

    def next_step(self) -> float | None:
        """A step of training begins: the seconds of the one before, from start to start; None where that is not known."""
        now = self.clock()
        wall = self._stopped if self._began is None else now - self._began
        self._began, self._stopped = now, None
        return wall

    def interrupt(self) -> None:
        """Something that is no step of training begins, a validation for one: the step before ends here."""
        if self._began is not None:
            self._stopped = self.clock() - self._began
            self._began = None


class Account:
    """The seconds of one participant, or of the work that all have in common; a context manager around that work.

    Args:
        meter: whose clock.
    """

    def __init__(self, meter: Meter) -> None:
        self.meter = meter
        self.seconds = 0.0

    def __enter__(self) -> None:
        """Begin to work; who was working stands still."""
        meter = self.meter
        now = meter.clock()
        if meter._entered:
            meter._entered[-1].seconds += now - meter._since
        meter._since = now
        meter._entered.append(self)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Whoever was working before goes on."""
        meter = self.meter
        now = meter.clock()
        meter._entered.pop().seconds += now - meter._since
        meter._since = now

    def take(self) -> float:
        """What has come together, which begins anew."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds


class Overhead:
    """The share of the time of steps that a monitor takes, and by how much its intervals should grow to keep a limit.

    Args:
        limit: the greatest share; None for none.
        call: seconds that torch takes to call one hook, which no clock inside the hook can see.
    """

    def __init__(self, limit: float | None = None, call: float = 0.0) -> None:
        self.limit = limit
        self.call = call
        self._watched = False
        self._to_report = [0.0, 0.0]
        self._costs: list[tuple[float, float, bool]] = []
        self._steps = 0  # that these are of
        self._skip = 1  # the first step prepares what the others reuse

    def begin(self) -> None:
        """A watched step begins."""
        self._watched = True

    def note(self, own: float, wall: float | None, steps: int = 1, calls: int = 0) -> None:
        """A step is over.

        Args:
            own: seconds that were spent on watching.
            wall: seconds of the step; None where they are not known.
            steps: of how many steps this is the time; of several only the first was watched, if any.
            calls: of hooks.
        """
        watched, self._watched = self._watched, False
        if wall is None or wall <= 0.0:
            return
        own += calls * self.call
        self._to_report[0] += own
        self._to_report[1] += wall
        if self.limit is None:
            return
        if self._skip:
            self._skip -= 1
        else:
            self._costs.append((own, wall, watched))
            self._steps += steps

    def report(self) -> dict[str, float]:
        """The share over the steps since the last report; nothing where there was no step."""
        own, wall = self._to_report
        self._to_report = [0.0, 0.0]
        return {"hooks/overhead": own / wall} if wall else {}

    def wish(self, factor: int) -> int:
        """By how much the intervals should be longer than the user wrote.

        Args:
            factor: by how much they are.
        """
        costs = self._costs
        if self.limit is None or self._steps < LEAST_STEPS or sum(watched for *_, watched in costs) < LEAST_WATCHED:
            return factor
        self._costs, self._steps = [], 0
        share = _share(costs)
        unwatched = _share([cost for cost in costs if not cost[2]])
        if share <= self.limit or unwatched >= self.limit:  # what steps cost that are not watched, no interval changes
            return factor
        # Of own and all other time, the first is to shrink until the limit is kept, and each doubling halves it at best.
        needed = share / (1.0 - share) * (1.0 - self.limit) / self.limit if share < 1.0 else WIDEST
        return int(min(factor * 2 ** max(1, math.ceil(math.log2(needed) - 1e-9)), WIDEST))

    def begin_anew(self) -> None:
        """The intervals are others: what was counted before says nothing about them."""
        self._costs, self._steps, self._skip = [], 0, 1


def _share(costs: list[tuple[float, float, bool]]) -> float:
    wall = sum(each for _, each, _ in costs)
    return sum(own for own, _, _ in costs) / wall if wall else 0.0


@lru_cache(maxsize=4)
def hook_cost(clock: Clock) -> float:
    """Seconds that torch takes to call a hook: the mean of one on a module and one on the gradient of its result.

    Measured once a process, in some milliseconds, with the hooks of this package on a module of one element. The caches are
    overwritten before each hook is called, as a model does it.

    Args:
        clock: of the meter.
    """
    with torch.inference_mode(False), torch.enable_grad():
        cache = np.zeros(_EVICTED, dtype=np.uint8)
        bare, hooked = _Same(), _Same()
        gate, handles = Gate(), Handles()
        hooks = ModuleHooks([HookSite(hooked, after=(_IGNORE,), output_grad=(_IGNORE,))], gate, handles)
        hooks.put_on(handles)
        gate.open = True
        times: dict[nn.Module, list[float]] = {bare: [], hooked: []}
        for _ in range(_CALLS):
            for module, taken in times.items():
                taken.append(sum(_call(module, cache, clock)))
        handles.close()
    return max(0.0, median(times[hooked]) - median(times[bare])) / 2


def _call(module: nn.Module, cache: Any, clock: Clock) -> Iterator[float]:
    """Seconds of a forward and of a backward."""
    x = torch.ones(1, requires_grad=True)
    cache.fill(1)
    begun = clock()
    output = module(x)
    yield clock() - begun
    cache.fill(2)
    begun = clock()
    torch.autograd.grad(output, x, _ONE)
    yield clock() - begun


class _Same(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 1.0


def _ignore(tensor: Tensor) -> None:
    """Called with what a hook sees."""


_ONE = torch.ones(1)
_IGNORE = TensorAction("", _ignore)
