"""The state of a table merged over all ranks, which may still be on its way from a device."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.stats.host_copy import HostCopy
from lightning_hooks.stats.requests import FACTS, NEGATED_FACTS, factors, stops
from lightning_hooks.stats.sections import Sections


class MergedState(NamedTuple):
    """The state of a table merged over all ranks.

    Args:
        state: the flat state, float64. With a single rank and a table in host memory, it shares the memory of the table.
        stops: for each owner of the table, whether any rank requests that it stops.
        factors: for each owner, the greatest factor that any rank requests for its intervals.
        facts_differ: whether the facts of the step differ between ranks.
    """

    state: NDArray[np.float64]
    stops: tuple[bool, ...]
    factors: tuple[int, ...]
    facts_differ: bool = False


class PendingState:
    """A merged state whose copy from the device may not be complete yet.

    Args:
        copy: the copy of the state.
        sections: the layout of the state.
        requests: of a single rank, what `MergedState` has as `stops` and `factors`; None if the state contains the requests.
    """

    def __init__(
        self, copy: HostCopy, sections: Sections, requests: tuple[tuple[bool, ...], tuple[int, ...]] | None = None
    ) -> None:
        self._copy = copy
        self.sections = sections
        self._requests = requests
        self._merged: MergedState | None = None

    @property
    def ready(self) -> bool:
        """See `HostCopy`."""
        return self._copy.ready

    @property
    def merged(self) -> MergedState:
        """The merged state. Waits for the device if the copy is not complete."""
        if self._merged is None:
            self._merged = self._read()
        return self._merged

    def _read(self) -> MergedState:
        state = self._copy.wait()
        if self._requests is not None:
            return MergedState(state, *self._requests)
        requests = state[self.sections.requests]
        owners = self.sections.owners
        return MergedState(
            state,
            tuple(bool(each) for each in requests[stops(owners)]),
            tuple(int(each) for each in requests[factors(owners)]),
            bool(requests[FACTS] != -requests[NEGATED_FACTS]),
        )
