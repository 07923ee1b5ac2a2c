"""Overflows under a loss scale: those that a loss scaler handles, and those that are faults."""

from __future__ import annotations

from typing import Final

_HALVINGS: Final = 3
"""The halvings after a good step that are still the scaler's work: the scale may have grown once, and a batch be unusual."""


class Overflows:
    """Tells an overflow that the loss scaler handles from a fault.

    A scaler begins with a scale that is too large, and lowers it until gradients fit. Once a step has gone well at a scale, an
    overflow at an eighth of it has another reason. At a scale of 1 the gradients are those of the loss itself.

    Example:
        >>> overflows = Overflows()
        >>> overflows.is_fault(65536.0), overflows.is_fault(1.0)
        (False, True)
        >>> overflows.note_good(1024.0)
        >>> overflows.is_fault(512.0), overflows.is_fault(128.0)
        (False, True)
    """

    def __init__(self) -> None:
        self._good: float | None = None

    def note_good(self, scale: float) -> None:
        """Note the scale of a step whose gradients were finite."""
        self._good = scale

    def is_fault(self, scale: float) -> bool:
        """Whether an overflow at a scale is a fault of the training, which lowering the scale does not mend."""
        return scale <= 1.0 or (self._good is not None and scale <= self._good / 2**_HALVINGS)
