"""The state of a table merged over all ranks, which may still be on its way from a device."""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.stats.host_copy import HostCopy
from lightning_hooks.stats.requests import FACTOR, FACTS, NEGATED_FACTS, STOP
from lightning_hooks.stats.sections import Sections


class MergedState(NamedTuple):
    """The state of a table merged over all ranks.

    Args:
        state: the flat state, float64. With a single rank and a table in host memory, it shares the memory of the table.
        stop: whether any rank requests to stop.
        factor: the greatest factor that any rank requests for its intervals.
        facts_differ: whether the facts of the step differ between ranks.
    """

    state: NDArray[np.float64]
    stop: bool
    factor: int
    facts_differ: bool = False


class PendingState:
    """A merged state whose copy from the device may not be complete yet.

    Args:
        copy: the copy of the state.
        sections: the layout of the state.
        requests: whether a single rank requests to stop, and its factor; None if the state contains the requests.
    """

    def __init__(self, copy: HostCopy, sections: Sections, requests: tuple[bool, int] | None = None) -> None:
        self._copy = copy
        self.sections = sections
        self._requests = requests

    @property
    def ready(self) -> bool:
        """See `HostCopy`."""
        return self._copy.ready

    @cached_property
    def merged(self) -> MergedState:
        """The merged state. Waits for the device if the copy is not complete."""
        state = self._copy.wait()
        if self._requests is not None:
            return MergedState(state, *self._requests)
        requests = state[self.sections.requests]
        return MergedState(
            state, bool(requests[STOP]), int(requests[FACTOR]), bool(requests[FACTS] != -requests[NEGATED_FACTS])
        )
