"""The steps that have ended and are not recorded yet.

To make the record of a step and to write it takes code and memory that the model has driven out of the caches, so several
together take hardly longer than one. Where steps are short and follow one another, some of them are kept and recorded together.
"""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter
from typing import Protocol

from torch import Tensor

from lightning_hooks.engine.overhead import Clock
from lightning_hooks.engine.recorder import Ended, Recorder
from lightning_hooks.stats.record import StepRecord

QUICK = 0.02
"""Seconds: a step that takes longer is recorded at once."""
LONGEST = 0.05
"""Seconds after which no further step is kept, but all are recorded."""
MOST_BYTES = 1 << 16
"""Of the tables of all steps that are kept."""


class Takes(Protocol):
    """Who is given records."""

    def __call__(self, *records: StepRecord) -> None:
        """Take those that were made together, in the order of the steps."""


class Pending:
    """Makes the record of each step: at once, together with the next ones, or when the next step ends.

    The last where its numbers are still on their way from a device. All ranks exchange their tables when the step itself ends.
    What they voted for is heeded where all of them do so alike, at the end of a step; records can be asked for earlier, and
    then the device is waited for.

    Args:
        recorder: makes the records.
        take: called with those that are made together, in the order of the steps.
        clock: seconds from anywhere.

    `together` says whether a record may come together with those of the next steps.
    """

    def __init__(self, recorder: Recorder, take: Takes, *, clock: Clock = perf_counter) -> None:
        self.together = False
        self._recorder = recorder
        self._take = take
        self._clock = clock
        self._voted: Ended | None = None  # whose votes are not heeded
        self._kept: list[Ended] = []  # not recorded
        self._bytes = 0  # of their tables
        self._since = 0.0  # the first of them is there
        self._last: tuple[int, float] = (-2, 0.0)  # the last step that ended, and when

    @property
    def waits(self) -> bool:
        """Whether a step has ended whose votes are not heeded, or that is not recorded."""
        return self._voted is not None or bool(self._kept)

    def end(self, step: int, reports: Mapping[str, float], scale: Tensor | None = None) -> None:
        """A watched step ends. All ranks must call it: the table is merged over them.

        Args:
            step: its number.
            reports: of the transforms, tag to value.
            scale: the loss scale by which gradients of module tensors are divided.

        Raises:
            StoppedError: the monitor has failed on some rank, as far as the votes are here.
        """
        ended = self._recorder.end(step, reports, scale)
        try:
            if self._voted is not None:
                self.heed()  # after the exchange, in which a rank that fails here must have taken part
        finally:  # and whose votes it must know
            self._voted = ended
            self._kept.append(ended)
        if ended.here:
            if self.together and self._may_wait(ended):
                ended.keep()
                self._heed_votes()
            else:
                self.heed()

    def heed(self) -> None:
        """A step ends, watched or not: heed the votes of the one before and record it. All ranks must call it.

        Raises:
            StoppedError: the monitor has failed on some rank.
        """
        self._heed_votes()
        self.settle()

    def settle(self) -> None:
        """Make the records that are not made; votes go on waiting for the end of a step.

        Raises:
            Exception: the first that one of them met, when all others are made.
        """
        self._bytes = 0
        made: list[StepRecord] = []
        failures: list[Exception] = []
        try:
            while self._kept:
                ended = self._kept.pop(0)
                try:
                    if not ended.merged.stop:
                        made.append(self._recorder.read(ended))
                except Exception as error:
                    failures.append(error)
        finally:  # an interruption leaves those that are not made for the next time
            try:
                if made:
                    self._take(*made)
            except Exception as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def _heed_votes(self) -> None:
        ended, self._voted = self._voted, None
        if ended is not None:
            self._recorder.observer.heed(ended.merged)

    def _may_wait(self, ended: Ended) -> bool:
        """Whether a step may wait for the next one, which is likely to end soon."""
        now = self._clock()
        (before, then), self._last = self._last, (ended.step, now)
        if not self._bytes:
            self._since = now
        self._bytes += ended.nbytes
        follows = before == ended.step - 1 and now - then < QUICK
        return follows and self._bytes <= MOST_BYTES and now - self._since < LONGEST
