"""Overhead: the time that work on a step takes, by participant, and the share of the step that a monitor takes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from statistics import median
from time import perf_counter
from types import TracebackType
from typing import TypeAlias

import torch
from torch import nn

from lightning_hooks.hooks import Action, Handles, HookSwitch, ModuleHooks

Clock = Callable[[], float]

# Change intervals only after _LEAST_STEPS steps with _LEAST_WATCHED watched ones, because a single step may be slow by chance.
_LEAST_STEPS = 8
_LEAST_WATCHED = 2
MAX_FACTOR = 2**20
# The cost of a hook is the median over this many pairs of runs of a small network, with and without hooks.
_PAIRS = 16
_LAYERS = 8  # of each class of layers in the small network
_SHAPE = (64, 256)  # of the input of the small network


class Meter:
    """The clock and the accounts of one model. Only the innermost entered account counts, so no second counts twice.

    The clock measures the process. Work that an accelerator still has to do when a call returns is not counted, since counting
    would have to wait for the accelerator.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock: Clock = clock or perf_counter
        self.common = Account(self)  # work for all participants together, in training
        self.aside = Account(self)  # work for all participants together, in other stages
        self.waiting = Account(self)  # waiting for an accelerator, of no participant: the host would wait for it elsewhere
        self._entered: _Entered | None = None
        self._since = 0.0
        self._began: float | None = None
        self._stopped: float | None = None

    def next_step(self) -> float | None:
        """Begin a training step. Returns the seconds of the previous one, from start to start; None if they are not known."""
        now = self.clock()
        wall = self._stopped if self._began is None else now - self._began
        self._began, self._stopped = now, None
        return wall

    def interrupt(self) -> None:
        """End the time of the current training step, because something else begins, for example a validation."""
        if self._began is not None:
            self._stopped = self.clock() - self._began
            self._began = None


_Entered: TypeAlias = "tuple[Account, _Entered | None]"
"""The innermost account that is entered, and those around it: a chain, because it is used some twenty times in a step."""


class Account:
    """The seconds of one participant, or of work for all of them; a context manager around that work."""

    def __init__(self, meter: Meter) -> None:
        self.meter = meter
        self.seconds = 0.0

    def __enter__(self) -> None:
        meter = self.meter
        now = meter.clock()
        if meter._entered is not None:
            meter._entered[0].seconds += now - meter._since
        meter._since = now
        meter._entered = self, meter._entered

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        meter = self.meter
        now = meter.clock()
        assert meter._entered is not None
        entered, meter._entered = meter._entered
        entered.seconds += now - meter._since
        meter._since = now

    def take(self) -> float:
        """The seconds since the previous call of `take`."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds


@dataclass
class _Time:
    """The time of several steps: all seconds, and those spent on watching (`own`)."""

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
        limit: the greatest share; None if there is no limit.
        call: seconds that torch takes to call one hook, which a clock inside the hook cannot measure.
    """

    def __init__(self, limit: float | None, call: float) -> None:
        self.limit = limit
        self.call = call
        self._is_watched = False
        self._reported = _Time()
        self._watched = _Time()
        self._unwatched = _Time()
        self._is_first = True  # the first step does not count, because it creates objects that later steps reuse

    def begin(self) -> None:
        """Begin a watched step. For other steps only `note` is called."""
        self._is_watched = True

    def note(self, own: float, wall: float | None, calls: int = 0) -> None:
        """Note the time of a finished step.

        Args:
            own: seconds spent on watching.
            wall: seconds of the step; None if they are not known.
            calls: how often hooks were called.
        """
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
        """The share over the steps since the last report; empty if there was no step."""
        reported, self._reported = self._reported, _Time()
        return {"run/overhead": reported.share} if reported.steps else {}

    def wanted_factor(self, factor: int) -> int:
        """The factor by which intervals should be longer than the rules say. `factor` is the current one."""
        watched, unwatched = self._watched, self._unwatched
        steps = watched.steps + unwatched.steps
        if self.limit is None or steps < _LEAST_STEPS or watched.steps < _LEAST_WATCHED:
            return factor
        self._watched, self._unwatched = _Time(), _Time()
        share = _Time(watched.own + unwatched.own, watched.wall + unwatched.wall).share
        # Longer intervals do not help if even unwatched steps reach the limit.
        if share <= self.limit or unwatched.share >= self.limit:
            return factor
        # Watching must take at most limit / (1 - limit) of the other time. Doubling the interval at best halves the time of
        # watching, so take the next power of two.
        needed = share / (1.0 - share) * (1.0 - self.limit) / self.limit if share < 1.0 else MAX_FACTOR
        return int(min(factor * 2 ** max(1, math.ceil(math.log2(needed) - 1e-9)), MAX_FACTOR))

    def restart(self) -> None:
        """Forget the previous steps, because the intervals have changed."""
        self._watched, self._unwatched = _Time(), _Time()
        self._is_first = True


@lru_cache(maxsize=4)
def hook_cost(clock: Clock) -> float:
    """Seconds that torch takes to call a hook: the mean over hooks on the outputs of a small network and on their gradients.

    Measured once per process and clock, in about 50 ms, with hooks of this package that do nothing. A layer runs between two
    hooks, so that caches are as cold as in a model.
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
            hooks.register(handles)
            taken = seconds()
            handles.close()
            return taken

        seconds()
        # Other load on the machine slows two consecutive runs alike, so the median of their differences is steadier than the
        # difference of two medians.
        more = [hooked() - seconds() for _ in range(_PAIRS)]
    return max(0.0, median(more)) / (2 * len(net))
