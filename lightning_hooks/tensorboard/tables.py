"""Computes the tables of a run, any statistic of any tensor at any step, from the vectors in its event files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.stats.pairs import PAIR_STATS
from lightning_hooks.stats.stored import DEVIATION, PAIR_NAMES, StoredRows, asked_first, from_file, function_names
from lightning_hooks.tensorboard.saved_windows import SavedWindow, read_window

Steps = NDArray[np.int64]
Values = NDArray[np.float64]


class Tables(ABC):
    """The tables of a run. A subclass reads vectors: one name (`count`, `mean`, …) of one tensor, for a list of rows."""

    @property
    @abstractmethod
    def version(self) -> int:
        """A number that changes when the run has grown."""

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
        """The numbers of `vector_steps(tensor, name)[first:last]`, float32 [steps, rows]; NaN for rows not written."""

    @abstractmethod
    def window_texts(self, prefix: str) -> Sequence[tuple[int, str]]:
        """The texts of the windows that a monitor has written, each with the last step.

        Args:
            prefix: by which the tables know the monitor.
        """

    @abstractmethod
    def asked(self) -> Mapping[str, Sequence[str]]:
        """The statistics that rules asked for, by tensor; empty if the run does not say."""

    @abstractmethod
    def ranks(self) -> int:
        """The number of processes of the run; 1 if the run does not say."""

    def tables(self) -> list[tuple[str, str]]:
        """The (tensor, statistic) of every table: those that rules asked for."""
        return [(tensor, stat) for tensor, names in self._names().items() for stat in self._statistics(tensor, names)]

    def has(self, tensor: str, stat: str) -> bool:
        """Whether a statistic can be computed from what is stored, even if no rule asked for it."""
        names = self._names().get(tensor)
        if names is None:
            return False
        return stat in StoredRows(names, _fail_to_read).statistics() or (stat == "ratio" and self._param_of(tensor) is not None)

    def rows(self, tensor: str, stat: str) -> tuple[str, ...]:
        """The names of the rows of a table."""
        if stat == "ratio" and (param := self._param_of(tensor)) is not None:
            param_rows = {*self.vector_rows(param, "count")}
            return tuple(name for name in self.vector_rows(tensor, "count") if name in param_rows)
        return self.vector_rows(tensor, self._base(tensor, stat))

    def steps(self, tensor: str, stat: str) -> Steps:
        """The steps of a table, ascending."""
        return self.vector_steps(tensor, self._base(tensor, stat))

    def first_steps(self, tensor: str, stat: str) -> Steps:
        """The first step that each of `steps(tensor, stat)` stands for: of a window its first step, of others the same step."""
        steps = self.steps(tensor, stat)
        windows = self._windows_of(tensor)
        if not windows:
            return steps
        return np.array([windows[step].first if step in windows else step for step in steps.tolist()], dtype=np.int64)

    def windows(self, prefix: str) -> Mapping[int, SavedWindow]:
        """The windows of several steps that a monitor has written, by their last steps; cached for the current version.

        Args:
            prefix: by which the tables know the monitor.
        """
        cached = getattr(self, "_cached_windows", None)
        if cached is None or cached[0] != self.version:
            by_prefix: dict[str, Mapping[int, SavedWindow]] = {}
            self._cached_windows = cached = self.version, by_prefix
        by_prefix = cached[1]
        if prefix not in by_prefix:
            found = ((last, read_window(text, last)) for last, text in self.window_texts(prefix))
            by_prefix[prefix] = {last: window for last, window in found if window is not None and window.first < last}
        return by_prefix[prefix]

    def _windows_of(self, tensor: str) -> Mapping[int, SavedWindow]:
        """The windows of the monitor that has written a tensor."""
        # Both the prefix of a monitor and the name of a tensor may contain slashes: take the longest prefix that has windows.
        parts = tensor.split("/")
        prefixes = ("".join(f"{part}/" for part in parts[:i]) for i in range(len(parts) - 1, -1, -1))
        return next(filter(None, map(self.windows, prefixes)), {})

    def read(self, tensor: str, stat: str, first: int, last: int) -> Values:
        """The values at `steps(tensor, stat)[first:last]`, float64 [steps, rows]; NaN where a row was not measured."""
        stored, params = self.stored(tensor, stat, first, last)
        return (stored.compute(stat) if params is None else stored.ratio_to(params)).T

    def stored(self, tensor: str, stat: str, first: int, last: int) -> tuple[StoredRows, StoredRows | None]:
        """The stored columns from which a table is computed at `steps(tensor, stat)[first:last]`.

        Returns:
            The columns of the tensor; for `ratio` also those of the parameters by which it is divided, otherwise None.
        """
        rows = self.rows(tensor, stat)
        base = self._base(tensor, stat)
        steps = self.vector_steps(tensor, base)[first:last]
        param = self._param_of(tensor) if stat == "ratio" else None
        stored = self.stored_at(tensor, rows, steps)
        return stored, None if param is None else self.stored_at(param, rows, steps)

    def _names(self) -> dict[str, list[str]]:
        """The names of the vectors of each tensor, cached for the current version."""
        cached = getattr(self, "_cached_names", None)
        if cached is None or cached[0] != self.version:
            grouped: dict[str, list[str]] = {}
            for tensor, name in self.vectors():
                grouped.setdefault(tensor, []).append(name)
            # Without the counts, which are in a file that is not damaged, nothing can be computed from the moments.
            grouped = {tensor: names for tensor, names in grouped.items() if DEVIATION not in names or "count" in names}
            self._cached_names = cached = self.version, grouped
        names: dict[str, list[str]] = cached[1]
        return names

    def stored_at(self, tensor: str, rows: tuple[str, ...], steps: Steps) -> StoredRows:
        """The stored columns of a tensor for these rows and steps; NaN where nothing was written."""
        return from_file(self._names()[tensor], lambda name: self._aligned(tensor, name, rows, steps).T, self.ranks())

    def _statistics(self, tensor: str, names: Sequence[str]) -> Sequence[str]:
        statistics = StoredRows(names, _fail_to_read).statistics()
        # A file of an older version of this package holds only the statistics that rules requested, not the moments.
        if DEVIATION not in names:
            return statistics
        asked = self.asked()
        # If no rule asked for a tensor, it is only stored because a ratio divides by its norm. List no table of it.
        return [] if asked and tensor not in asked else asked_first(statistics, asked.get(tensor, ()))

    def _base(self, tensor: str, stat: str) -> str:
        """The name of the vector that has the rows and the steps of a table."""
        names = self._names()[tensor]
        if stat in names or DEVIATION not in names:
            return stat
        if stat in PAIR_STATS:
            return PAIR_NAMES[0]
        weighted, _ = function_names(stat)
        return weighted if weighted in names else "count"

    def _param_of(self, tensor: str) -> str | None:
        """The parameters by which the ratio of an `update` tensor is divided: the `param` tensor with the same prefix.

        None if the tensor is no update, or if the file does not store the parameters, as files of older versions.
        """
        param = f"{tensor.removesuffix('update')}param"
        names = self._names()
        return param if tensor.endswith("update") and DEVIATION in names.get(param, ()) else None

    def _aligned(self, tensor: str, name: str, rows: tuple[str, ...], steps: Steps) -> Any:
        """A vector at these steps for these rows, float32 [steps, rows]; NaN where the vector lacks the step or the row."""
        vector_rows, vector_steps = self.vector_rows(tensor, name), self.vector_steps(tensor, name)
        first = int(np.searchsorted(vector_steps, steps[0])) if len(steps) else 0
        # If the steps are contiguous in the vector, as in most runs, read them in one go.
        if np.array_equal(vector_steps[first : first + len(steps)], steps):
            numbers = self.read_vector(tensor, name, first, first + len(steps))
        else:
            numbers = self._read_scattered(tensor, name, steps, len(vector_rows))
        if vector_rows == rows:
            return numbers
        column_of = {row: i for i, row in enumerate(vector_rows)}
        out = np.full((len(steps), len(rows)), np.nan, dtype=np.float32)
        shared = [(i, column_of[row]) for i, row in enumerate(rows) if row in column_of]
        if shared:
            targets, sources = np.array(shared, dtype=np.intp).T
            out[:, targets] = numbers[:, sources]
        return out

    def _read_scattered(self, tensor: str, name: str, steps: Steps, width: int) -> Any:
        """A vector of `width` rows at steps that are not contiguous in it, float32 [steps, width]."""
        vector_steps = self.vector_steps(tensor, name)
        out = np.full((len(steps), width), np.nan, dtype=np.float32)
        if not len(vector_steps):
            return out
        indices = np.searchsorted(vector_steps, steps).clip(max=len(vector_steps) - 1)
        is_stored = vector_steps[indices] == steps
        if is_stored.any():
            low, high = int(indices[is_stored].min()), int(indices[is_stored].max()) + 1
            out[is_stored] = self.read_vector(tensor, name, low, high)[indices[is_stored] - low]
        return out


def _fail_to_read(name: str) -> Any:
    """Stands in for the reader of `StoredRows` where only names are needed and no column may be read."""
    raise AssertionError(name)
