"""What a table is once all ranks have exchanged theirs, with what they voted for."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.stats.host_copy import HostCopy

FACTOR: Final = -2
STOP: Final = -1
VOTES: Final = 2
"""The last so many elements of a state are votes; these are their places."""


class Merged(NamedTuple):
    """What all ranks have.

    Args:
        state: flat; of a single rank whose table is on the CPU its own, which the next write changes.
        stop: whether any rank has voted to stop.
        factor: the greatest for which any rank has voted.
    """

    state: NDArray[np.float64]
    stop: bool
    factor: int


class Merging:
    """What all ranks have, perhaps still on its way from the device.

    Args:
        copy: of the merged state.
        votes: known without it: whether to stop, and the factor; None where they are in the state.
    """

    __slots__ = ("_copy", "_merged", "_votes")

    def __init__(self, copy: HostCopy, votes: tuple[bool, int] | None = None) -> None:
        self._copy = copy
        self._votes = votes
        self._merged: Merged | None = None

    @property
    def here(self) -> bool:
        """Whether to read it costs no waiting for a device."""
        return self._copy.here

    @property
    def merged(self) -> Merged:
        """It, once it is here."""
        if self._merged is None:
            state = self._copy.wait()
            stop, factor = self._votes or (bool(state[STOP]), int(state[FACTOR]))
            self._merged = Merged(state, stop, factor)
        return self._merged
