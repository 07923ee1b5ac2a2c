"""Batches of one number, among batches of the same input that have many."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_BEFORE: Final = 10
"""The number of other batches that must have come."""
_CHANCE: Final = 1e-6
"""The largest probability with which the elements of a usual batch that are looked at are all the same."""
_SETTLED: Final = 50
"""The number of batches after which the share of the most frequent number is known."""
_LEAST_SHARE: Final = 0.5
"""The share of elements that are taken to be the most frequent number, however rare that is."""


class EmptyBatches:
    """Tells a batch whose elements are all the same number from what the batches of the input usually are.

    An input that has only two different numbers, such as a mask, is not judged.

    Example:
        >>> batches = EmptyBatches()
        >>> [batches.is_empty(np.zeros(64) if step == 11 else np.arange(64.0)) for step in range(9, 13)]
        [False, False, False, False]
        >>> [batches.is_empty(np.zeros(64) if step == 11 else np.arange(64.0)) for step in range(20)].index(True)
        11
    """

    def __init__(self) -> None:
        self._others = self._batches = 0
        self._share = _LEAST_SHARE  # the largest share of a usual batch that was its most frequent number

    def is_empty(self, elements: NDArray[Any]) -> bool:
        """Add a batch, and tell whether it is one number.

        Args:
            elements: some elements of it, [elements].
        """
        self._batches += 1
        if self._batches > _SETTLED and elements[0] != elements[-1]:
            return False
        low, high = elements.min(), elements.max()
        if low == high:
            return self._others >= _BEFORE and self._share ** len(elements) < _CHANCE
        if self._batches > _SETTLED:
            return False
        # If a number makes up more than half of the elements it is their median.
        middle = np.partition(elements, len(elements) // 2)[len(elements) // 2]
        self._share = max(self._share, float(np.mean(elements == middle)))
        self._others += self._others < _BEFORE and bool(((elements != low) & (elements != high)).any())
        return False
