"""Tables: any statistic of any tensor at any step, read from the vectors of a run's event files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.stats.pairs import PAIR_STATS
from lightning_hooks.stats.stored import DEVIATION, PAIR_NAMES, StoredRows, asked_first, from_file, function_names

Steps = NDArray[np.int64]
Values = NDArray[np.float64]


class Tables(ABC):
    """The tables of a run. A subclass reads vectors: one name (`count`, `mean`, …) of one tensor, for a list of rows."""

    @property
    @abstractmethod
    def version(self) -> int:
        """Another number when the run has grown."""

    @abstractmethod
    def vectors(self) -> list[tuple[str, str]]:
        """The (tensor, name) of every vector; the tensor has the monitor's prefix."""

    @abstractmethod
    def vector_rows(self, tensor: str, name: str) -> tuple[str, ...]:
        """The names of the rows of a vector."""

    @abstractmethod
    def vector_steps(self, tensor: str, name: str) -> Steps:
        """The steps of a vector, ascending."""

    @abstractmethod
    def read_vector(self, tensor: str, name: str, first: int, last: int) -> Any:
        """The numbers at the points `first` to `last` of the steps, float32 [points, rows]; NaN for rows not written there."""

    @abstractmethod
    def asked(self) -> Mapping[str, Sequence[str]]:
        """The statistics that rules asked of each tensor, as far as it is known."""

    @abstractmethod
    def ranks(self) -> int:
        """How many processes the run had, as far as it is known."""

    def tables(self) -> list[tuple[str, str]]:
        """The (tensor, statistic) of every table: those that rules asked for."""
        return [(tensor, stat) for tensor, names in self._names().items() for stat in self._statistics(tensor, names)]

    def has(self, tensor: str, stat: str) -> bool:
        """Whether a statistic can be read, also if no rule asked for it."""
        names = self._names().get(tensor)
        if names is None:
            return False
        return stat in StoredRows(names, _nothing).statistics() or (stat == "ratio" and self._below(tensor) is not None)

    def rows(self, tensor: str, stat: str) -> tuple[str, ...]:
        """The names of the rows of a table."""
        if stat == "ratio" and (below := self._below(tensor)) is not None:
            known = {*self.vector_rows(below, "count")}
            return tuple(name for name in self.vector_rows(tensor, "count") if name in known)
        return self.vector_rows(tensor, self._base(tensor, stat))

    def steps(self, tensor: str, stat: str) -> Steps:
        """The steps of a table, ascending."""
        return self.vector_steps(tensor, self._base(tensor, stat))

    def read(self, tensor: str, stat: str, first: int, last: int) -> Values:
        """The values at the points `first` to `last` of the steps, float64 [points, rows]; NaN where nothing was measured."""
        own, below = self.stored(tensor, stat, first, last)
        return (own.compute(stat) if below is None else own.ratio_to(below)).T

    def stored(self, tensor: str, stat: str, first: int, last: int) -> tuple[StoredRows, StoredRows | None]:
        """What is stored of the rows of a table at some of its points, and for a ratio that of the parameters beside it."""
        rows = self.rows(tensor, stat)
        base = self._base(tensor, stat)
        steps = self.vector_steps(tensor, base)[first:last]
        below = self._below(tensor) if stat == "ratio" else None
        own = self._stored(tensor, rows, steps)
        return own, None if below is None else self._stored(below, rows, steps)

    def _names(self) -> dict[str, list[str]]:
        """The names of the vectors of each tensor."""
        known = getattr(self, "_known_names", None)
        if known is None or known[0] != self.version:
            found: dict[str, list[str]] = {}
            for tensor, name in self.vectors():
                found.setdefault(tensor, []).append(name)
            self._known_names = known = self.version, found
        names: dict[str, list[str]] = known[1]
        return names

    def stored_at(self, tensor: str, rows: tuple[str, ...], steps: Steps) -> StoredRows:
        """What is stored of rows of a tensor at these steps; NaN where there is nothing."""
        return self._stored(tensor, rows, steps)

    def _statistics(self, tensor: str, names: Sequence[str]) -> Sequence[str]:
        found = StoredRows(names, _nothing).statistics()
        if DEVIATION not in names:
            return found
        asked = self.asked()
        # A tensor that no rule asked for is only stored because a ratio needs it.
        return [] if asked and tensor not in asked else asked_first(found, asked.get(tensor, ()))

    def _base(self, tensor: str, stat: str) -> str:
        """The vector whose rows and steps are those of a table."""
        names = self._names()[tensor]
        if stat in names or DEVIATION not in names:
            return stat
        if stat in PAIR_STATS:
            return PAIR_NAMES[0]
        weighted, _ = function_names(stat)
        return weighted if weighted in names else "count"

    def _below(self, tensor: str) -> str | None:
        """The parameters of a ratio: the tensor with the same prefix; None where they are not stored, as in older files."""
        below = f"{tensor.removesuffix('update')}param"
        names = self._names()
        return below if tensor.endswith("update") and DEVIATION in names.get(below, ()) else None

    def _stored(self, tensor: str, rows: tuple[str, ...], steps: Steps) -> StoredRows:
        return from_file(self._names()[tensor], lambda name: self._aligned(tensor, name, rows, steps).T, self.ranks())

    def _aligned(self, tensor: str, name: str, rows: tuple[str, ...], steps: Steps) -> Any:
        """A vector at these steps for these rows, float32 [steps, rows]; NaN where there is none."""
        known, there = self.vector_rows(tensor, name), self.vector_steps(tensor, name)
        first = int(np.searchsorted(there, steps[0])) if len(steps) else 0
        if np.array_equal(there[first : first + len(steps)], steps):  # as in most runs
            numbers = self.read_vector(tensor, name, first, first + len(steps))
        else:
            numbers = self._scattered(tensor, name, there, steps, len(known))
        if known == rows:
            return numbers
        place = {each: i for i, each in enumerate(known)}
        out = np.full((len(steps), len(rows)), np.nan, dtype=np.float32)
        shared = [(i, place[each]) for i, each in enumerate(rows) if each in place]
        if shared:
            into, taken = np.array(shared, dtype=np.intp).T
            out[:, into] = numbers[:, taken]
        return out

    def _scattered(self, tensor: str, name: str, there: Steps, steps: Steps, width: int) -> Any:
        out = np.full((len(steps), width), np.nan, dtype=np.float32)
        if not len(there):
            return out
        places = np.searchsorted(there, steps).clip(max=len(there) - 1)
        found = there[places] == steps
        if found.any():
            low, high = int(places[found].min()), int(places[found].max()) + 1
            out[found] = self.read_vector(tensor, name, low, high)[places[found] - low]
        return out


def _nothing(name: str) -> Any:
    raise AssertionError(name)
