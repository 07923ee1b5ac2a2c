"""Looks how long the training waits between its steps, most often for the next batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from statistics import median
from time import perf_counter
from typing import ClassVar, Final

import torch

from lightning_hooks.engine.lookouts.entry import Entry
from lightning_hooks.engine.lookouts.surroundings import Surroundings
from lightning_hooks.engine.participants.lookout import Lookout
from lightning_hooks.hooks import Handles, HookSwitch
from lightning_hooks.records.facts import Sighting

WINDOW: Final = 50
"""The number of steps whose waits are compared."""
_BEGIN: Final = 10
"""The first steps, in which workers start and kernels are chosen."""
_SHARE: Final = 0.5
"""The share of a step."""
_SECONDS: Final = 0.02
"""The seconds of a step: shorter waits are those of any loop."""


class _Mark:
    """A moment: that at which the device has done all that was asked of it, if it is a GPU, else the current one."""

    def __init__(self, is_on_gpu: bool) -> None:
        self._event = torch.cuda.Event(enable_timing=True) if is_on_gpu else None
        self._time = perf_counter()
        if self._event is not None:
            self._event.record()

    @property
    def has_passed(self) -> bool:
        return self._event is None or bool(self._event.query())

    def until(self, later: _Mark) -> float:
        """The seconds until another moment that has passed."""
        if self._event is None or later._event is None:
            return later._time - self._time
        return float(self._event.elapsed_time(later._event)) / 1000


class WaitingLookout(Lookout):
    """Compares the time between two steps with that of both, in which nothing is computed for the training.

    With a Trainer it lies between the end of a batch and the start of the next; in a plain loop between the step of the
    optimizer and the next call of the model. Of a GPU it is the time in which the GPU has nothing to do.
    """

    kinds: ClassVar[tuple[str, ...]] = ("waits-for-data",)

    def __init__(self, surroundings: Surroundings) -> None:
        self._around = surroundings
        self._entry = Entry(surroundings, lambda tensors: self._begin())
        self._is_on_gpu = False
        self._looked = 0
        self._end: _Mark | None = None  # of the step before
        self._pending: deque[tuple[_Mark, _Mark]] = deque()  # the end of each step and the begin of the next
        self._last_begin: _Mark | None = None
        self._waits: list[tuple[float, float]] = []  # of each step: the seconds before it, and those until the next

    def step_key(self, step: int, stage: str) -> Hashable | None:
        return "waiting" if stage == "train" and self._looked <= _BEGIN + WINDOW else None

    def joined(self, switch: HookSwitch, handles: Handles) -> None:
        self._entry.look_up()
        model = self._around.model()
        first = None if model is None else next(model.parameters(), None)
        self._is_on_gpu = first is not None and first.is_cuda

    def register(self, key: object, switch: HookSwitch, handles: Handles) -> None:
        self._entry.register(switch, handles)

    def begin_step(self, step: int, stage: str, reporting: bool) -> None:
        self._looked += 1
        self._entry.begin_step()
        if self._around.knows_batches:
            self._begin()

    def _begin(self) -> None:
        if self._looked > _BEGIN and not self._is_capturing:
            begin = _Mark(self._is_on_gpu)
            if self._end is not None:
                self._pending.append((self._end, begin))
            self._end = None

    def end_step(self) -> None:
        if self._looked >= _BEGIN and not self._is_capturing:
            self._end = _Mark(self._is_on_gpu)
        self._take()

    @property
    def _is_capturing(self) -> bool:
        """Whether a CUDA graph is captured, in which no time passes."""
        return self._is_on_gpu and torch.cuda.is_current_stream_capturing()

    def left(self) -> None:
        self._pending.clear()
        self._end = self._last_begin = None

    def _take(self) -> None:
        while self._pending and not self._is_capturing and self._pending[0][1].has_passed:
            end, begin = self._pending.popleft()
            if self._last_begin is not None and len(self._waits) < WINDOW:
                self._waits.append((end.until(begin), self._last_begin.until(begin)))
            self._last_begin = begin

    def sightings(self) -> tuple[Sighting, ...]:
        self._take()
        if len(self._waits) < WINDOW - 1:
            return ()
        # The median leaves out the waits for a validation, a checkpoint and the first batch of an epoch.
        wait, step = median(wait for wait, _ in self._waits), median(step for _, step in self._waits)
        if wait < _SECONDS or wait < _SHARE * step:
            return ()
        of = f"{1000 * wait:.0f} of the {1000 * step:.0f} ms"
        text = f"in each step {of} pass between the end of a step and the next batch, as the median of {WINDOW - 1} steps says"
        return (Sighting("waits-for-data", text, measured=wait / step, threshold=_SHARE),)


LOOKOUTS: Final[tuple[type[Lookout], ...]] = (WaitingLookout,)
"""The lookouts of this file."""
