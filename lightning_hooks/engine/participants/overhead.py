"""Overhead: the time that work on a step takes, by participant, and the share of the step that a monitor takes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from statistics import median
from time import perf_counter
from types import TracebackType

import torch
from torch import nn

from lightning_hooks.hooks import Action, Handles, HookSwitch, ModuleHooks

Clock = Callable[[], float]

# Intervals are judged by this many steps at least, of which this many were watched: one slow step says little.
_LEAST_STEPS = 8
_LEAST_WATCHED = 2
MAX_FACTOR = 2**20
_PAIRS = 16
_LAYERS = 8  # of each kind
_SHAPE = (64, 256)


class Meter:
    """The clock and the accounts of one model. Only the innermost account that is entered counts, so no second counts twice.

    The clock is that of the process: what an accelerator still has to do when a call returns is not counted, since the call
    would have to wait for it.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock: Clock = clock or perf_counter
        self.common = Account(self)  # the cost that all participants share in training
        self.aside = Account(self)  # the same in other stages
        self._entered: list[Account] = []
        self._since = 0.0
        self._began: float | None = None
        self._stopped: float | None = None

    def next_step(self) -> float | None:
        """A step of training begins. The seconds of the one before, from start to start; None where they are not known."""
        now = self.clock()
        wall = self._stopped if self._began is None else now - self._began
        self._began, self._stopped = now, None
        return wall

    def interrupt(self) -> None:
        """Something other than a training step begins, for example a validation: the step before ends here."""
        if self._began is not None:
            self._stopped = self.clock() - self._began
            self._began = None


class Account:
    """The seconds of one participant, or of the work that all have in common; a context manager around that work."""

    def __init__(self, meter: Meter) -> None:
        self.meter = meter
        self.seconds = 0.0

    def __enter__(self) -> None:
        meter = self.meter
        now = meter.clock()
        if meter._entered:
            meter._entered[-1].seconds += now - meter._since
        meter._since = now
        meter._entered.append(self)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        meter = self.meter
        now = meter.clock()
        meter._entered.pop().seconds += now - meter._since
        meter._since = now

    def take(self) -> float:
        """The seconds since this was called last."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds


@dataclass
class _Time:
    """The seconds of several steps, and those of them that were spent on watching."""

    own: float = 0.0
    wall: float = 0.0
    steps: int = 0

    def add(self, own: float, wall: float) -> None:
        self.own += own
        self.wall += wall
        self.steps += 1

    @property
    def share(self) -> float:
        return self.own / self.wall if self.wall else 0.0


class Overhead:
    """The share of the time of steps that a monitor takes, and by how much its intervals should grow to keep a limit.

    Args:
        limit: the greatest share; None for none.
        call: seconds that torch takes to call one hook, which no clock inside the hook can see.
    """

    def __init__(self, limit: float | None, call: float) -> None:
        self.limit = limit
        self.call = call
        self._is_watched = False
        self._reported = _Time()
        self._watched = _Time()
        self._unwatched = _Time()
        self._is_first = True  # the first step prepares what the others reuse

    def begin(self) -> None:
        """A watched step begins; the others only `note`."""
        self._is_watched = True

    def note(self, own: float, wall: float | None, calls: int = 0) -> None:
        """A step is over: seconds spent on watching, seconds of the step if they are known, and how often hooks were called."""
        watched, self._is_watched = self._is_watched, False
        if wall is None or wall <= 0.0:
            return
        own += calls * self.call
        self._reported.add(own, wall)
        if self._is_first:
            self._is_first = False
        else:
            (self._watched if watched else self._unwatched).add(own, wall)

    def report(self) -> dict[str, float]:
        """The share over the steps since the last report; nothing where there was no step."""
        reported, self._reported = self._reported, _Time()
        return {"hooks/overhead": reported.share} if reported.steps else {}

    def wanted_factor(self, factor: int) -> int:
        """By how much the intervals should be longer than the user wrote, where they are longer by `factor` now."""
        watched, unwatched = self._watched, self._unwatched
        steps = watched.steps + unwatched.steps
        if self.limit is None or steps < _LEAST_STEPS or watched.steps < _LEAST_WATCHED:
            return factor
        self._watched, self._unwatched = _Time(), _Time()
        share = _Time(watched.own + unwatched.own, watched.wall + unwatched.wall).share
        if share <= self.limit or unwatched.share >= self.limit:  # no interval changes what unwatched steps cost
            return factor
        # Of own and all other time, the first is to shrink until the limit is kept, and each doubling halves it at best.
        needed = share / (1.0 - share) * (1.0 - self.limit) / self.limit if share < 1.0 else MAX_FACTOR
        return int(min(factor * 2 ** max(1, math.ceil(math.log2(needed) - 1e-9)), MAX_FACTOR))

    def restart(self) -> None:
        """Forget the steps before: the intervals have changed."""
        self._watched, self._unwatched = _Time(), _Time()
        self._is_first = True


@lru_cache(maxsize=4)
def hook_cost(clock: Clock) -> float:
    """Seconds that torch takes to call a hook: the mean of those on the modules of a small network and on their gradients.

    Measured once a process, in about 50 ms, with hooks of this package that do nothing. Between two of them a layer runs, so
    that caches are as cold as in a model.
    """
    with torch.inference_mode(False), torch.enable_grad():
        net = nn.Sequential(*(kind() for _ in range(_LAYERS) for kind in (nn.ReLU, nn.GELU, nn.LogSigmoid)))
        x = torch.ones(_SHAPE, dtype=torch.float32, device="cpu", requires_grad=True)
        gradient = torch.ones_like(x)
        switch, handles = HookSwitch(), Handles()
        actions = [Action(layer, tensor, lambda given: None) for layer in net for tensor in ("output", "output_grad")]
        hooks = ModuleHooks(actions, set(), switch, handles)
        switch.is_on = True

        def seconds() -> float:
            begun = clock()
            torch.autograd.grad(net(x), x, gradient)
            return clock() - begun

        def hooked() -> float:
            hooks.put_on(handles)
            taken = seconds()
            handles.close()
            return taken

        seconds()
        # What disturbs the machine disturbs neighbours alike: the median of differences is steadier than that of medians.
        more = [hooked() - seconds() for _ in range(_PAIRS)]
    return max(0.0, median(more)) / (2 * len(net))
