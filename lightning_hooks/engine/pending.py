"""The step that has ended, and whose numbers may still be on their way from the device."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from lightning_hooks.engine.recorder import Ended, Recorder
from lightning_hooks.stats.record import StepRecord


class Pending:
    """Makes the record of each step: at once where its numbers are here, else when the next step ends.

    All ranks exchange their tables when the step itself ends. What they voted for is heeded where all of them do so alike,
    at the end of a step; the record can be asked for earlier, and then the device is waited for.

    Args:
        recorder: makes the records.
        take: called with each, in the order of the steps.
    """

    def __init__(self, recorder: Recorder, take: Callable[[StepRecord], None]) -> None:
        self._recorder = recorder
        self._take = take
        self._ended: Ended | None = None
        self._taken = True

    @property
    def waits(self) -> bool:
        """Whether a step has ended whose votes are not heeded."""
        return self._ended is not None

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
            self.heed()  # after the exchange, in which a rank that fails here must have taken part
        finally:  # and whose votes it must know
            self._ended, self._taken = ended, False
        if ended.here:
            self.heed()

    def heed(self) -> None:
        """A step ends, watched or not: heed the votes of the one before and settle it. All ranks must call it.

        Raises:
            StoppedError: the monitor has failed on some rank.
        """
        if self._ended is None:
            return
        try:
            self._recorder.observer.heed(self._ended.merged)
            self.settle()
        finally:
            self._ended = None

    def settle(self) -> None:
        """Make the record of the last step, if that was not done; the votes go on waiting for the end of a step."""
        if self._ended is None or self._taken:
            return
        self._taken = True
        if not self._ended.merged.stop:
            self._take(self._recorder.read(self._ended))
