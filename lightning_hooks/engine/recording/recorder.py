"""The interface of a recorder: it looks at the numbers of a step as they are measured, and tells what it has recorded."""

from __future__ import annotations

from typing import Literal, Protocol

from torch import Tensor
from torch.optim import Optimizer

from lightning_hooks.engine.participants.participant import PhaseMemo
from lightning_hooks.engine.recording.batch_marks import BatchMarks
from lightning_hooks.engine.recording.recorded_step import RecordedStep

FoundIn = Literal["loss", "gradients", "parameters"]
"""The tensors in which the first number that is not finite was found."""


class Recorder(Protocol):
    """Reads the rows of a recorder while a step runs; two classes do so, for a model in host memory and for one on a device.

    Attributes:
        marks: the batches that have begun.
        is_immediate: whether the numbers can be read without waiting for a device.
    """

    marks: BatchMarks
    is_immediate: bool

    def begin_step(self, step: int) -> None:
        """Note that a step begins."""

    def begin_batch(self) -> None:
        """Note that a batch begins; a second call for the same batch does nothing."""

    def look_at_loss(self, scale: Tensor | None) -> FoundIn | None:
        """Look at the loss before its backward. Returns where a bad number was found; None if all are finite.

        Args:
            scale: the loss scale; None without one.
        """

    def look_before_step(self, scale: Tensor | None) -> FoundIn | None:
        """Look at the gradients of an optimizer before its update; arguments and result as of `look_at_loss`."""

    def look_after_update(self, optimizer: Optimizer, memo: PhaseMemo) -> FoundIn | None:
        """Look at the parameters that an optimizer has changed; result as of `look_at_loss`."""

    def end_step(self, scale: Tensor | None) -> FoundIn | None:
        """End a step; arguments and result as of `look_at_loss`."""

    def flush(self) -> FoundIn | None:
        """Look at the numbers of an ended step that are still on their way; result as of `look_at_loss`."""

    @property
    def step(self) -> int:
        """The step of `recorded`."""

    def recorded(self) -> RecordedStep:
        """The step in which a bad number was found; without one, the step under way."""
