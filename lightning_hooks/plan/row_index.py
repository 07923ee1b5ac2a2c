"""Row index: what each row of a step view is of, fixed for as long as the plan is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.errors import RuleError
from lightning_hooks.plan.rows import Due, Requests, Row, requested
from lightning_hooks.stats.accumulators import Accumulator, Kept
from lightning_hooks.stats.columns import by_starts
from lightning_hooks.stats.statistics import MAGNITUDE_STATS

Indices = NDArray[np.intp]


class Alike(NamedTuple):
    """Rows of one tensor with the same requests."""

    tensor: str
    requests: Requests
    rows: Indices


class KeptRows(NamedTuple):
    """Which rows and groups of a step view keep what an accumulator keeps.

    Args:
        accumulator: as step views need it.
        rows: the rows, in the order of their numbers in a view.
        slots: for each row its place among these numbers, -1 where it keeps none and for groups, int [rows and groups].
        members: for each group whose members keep it, their places.
    """

    accumulator: Accumulator
    rows: tuple[int, ...]
    slots: Indices
    members: Mapping[int, Indices]

    @classmethod
    def of(cls, kept: Kept, count: int, groups: Mapping[int, tuple[int, ...]]) -> KeptRows:
        """From the rows of a table.

        Args:
            kept: the accumulator with its rows.
            count: how many rows and groups there are.
            groups: the members of each group.
        """
        slots = np.full(count, -1, dtype=np.intp)
        slots[list(kept.rows)] = np.arange(len(kept.rows))
        members = {group: slots[list(each)] for group, each in groups.items() if len(each) and (slots[list(each)] >= 0).all()}
        return cls(kept.accumulator.for_views(), kept.rows, slots, members)

    def has(self, row: int) -> bool:
        """Whether a row or group keeps it."""
        return bool(self.slots[row] >= 0) or row in self.members

    def take(self, numbers: NDArray[np.float64], rows: Indices) -> NDArray[np.float64]:
        """The numbers of rows and groups, float64 [len(rows), columns]; all of them must keep it.

        Args:
            numbers: of all rows that keep it, float64 [rows, columns].
            rows: indices of rows and groups.
        """
        slots = self.slots[rows]
        if (slots >= 0).all():
            return numbers[slots]
        parts = [self.members[row] if row in self.members else self.slots[[row]] for row in rows.tolist()]
        starts = np.cumsum([0, *map(len, parts)], dtype=np.intp)[: len(parts)]
        every = np.concatenate(parts)
        with np.errstate(invalid="ignore", over="ignore"):
            united: NDArray[np.float64] = self.accumulator.merge(numbers[every], by_starts(starts, len(every)), over_rows=True)
        return united


class RowIndex:
    """What the rows of a step view are: those of the table first, then one for each group.

    It holds names and numbers only, no module and no parameter, so a view may be kept after the fit.

    Args:
        names: dotted name of each row.
        tensors: tensor of each row: `grad`, `output[0]` …
        module_types: class name of the module of each row, or of the one that holds the parameter; empty for a group.
        members: of each group (by its index) the indices of the rows that it merges.
        order: the indices of the rows of modules in the order in which they were first measured in the first watched step:
            `input` and `output` as modules ran, gradients as they came back. Rows that were not measured in it follow in the
            order of their definition.
        param_row_of: of an update row the row of its parameter, of a group of updates the group of these.
        alike: the rows with the same requests.
        groups: the groups, each by itself.
        kept: what rows keep besides moments.
        magnitudes: whether sums of magnitudes and underflows are measured.
    """

    def __init__(
        self,
        names: Sequence[str] = (),
        tensors: Sequence[str] = (),
        module_types: Sequence[str] = (),
        members: Mapping[int, tuple[int, ...]] | None = None,
        order: Sequence[int] = (),
        param_row_of: Mapping[int, int] | None = None,
        alike: Sequence[Alike] = (),
        groups: Sequence[Alike] = (),
        kept: Sequence[Kept] = (),
        *,
        magnitudes: bool = False,
    ) -> None:
        self.names, self.tensors, self.module_types = tuple(names), tuple(tensors), tuple(module_types)
        self.members: Mapping[int, tuple[int, ...]] = dict(members or {})
        self.order = tuple(order)
        self.param_row_of: Mapping[int, int] = dict(param_row_of or {})
        self.alike, self.groups = tuple(alike), tuple(groups)
        self.kept = {each.accumulator.name: KeptRows.of(each, len(self.names), self.members) for each in kept}
        self.magnitudes = magnitudes
        self._of: dict[str, tuple[Indices, tuple[str, ...]]] = {}

    @classmethod
    def of_rows(
        cls,
        rows: Sequence[Row],
        groups: Sequence[Row] = (),
        param_row_of: Mapping[int, int] | None = None,
        kept: Sequence[Kept] = (),
    ) -> RowIndex:
        """From the rows and the groups of a plan.

        Args:
            rows: of the plan.
            groups: of these rows.
            param_row_of: as of this class.
            kept: as of this class.
        """
        found: dict[tuple[str, Requests], list[int]] = {}
        for row in rows:
            found.setdefault((row.tensor, row.requests), []).append(row.index)
        every = (*rows, *groups)
        return cls(
            [row.name for row in every],
            [row.tensor for row in every],
            [*(type(row.target.owner).__name__ for row in rows), *("" for _ in groups)],
            {group.index: group.members for group in groups},
            [row.index for row in rows if row.target.owner is row.target.value],
            param_row_of,
            [Alike(*key, np.array(indices)) for key, indices in found.items()],
            [Alike(group.tensor, group.requests, np.array([group.index])) for group in groups],
            kept,
            magnitudes=any(stat in MAGNITUDE_STATS for row in every for stat in row.stats),
        )

    def __len__(self) -> int:
        return len(self.names)

    def of(self, tensor: str) -> tuple[Indices, tuple[str, ...]]:
        """The indices and the names of all rows and groups of a tensor; the same objects at every call."""
        if tensor not in self._of:
            indices = np.flatnonzero(np.array([each == tensor for each in self.tensors], dtype=np.bool_))
            indices.flags.writeable = False
            self._of[tensor] = indices, tuple(map(self.names.__getitem__, indices.tolist()))
        return self._of[tensor]

    def set_execution_order(self, rows: list[int]) -> None:
        """Set the order of execution, once. A row may occur several times; rows that did not run come last."""
        self.order = tuple(dict.fromkeys((*rows, *self.order)))

    def rows_with(self, wanted: Callable[[str], bool]) -> Indices:
        """The rows, without groups, for which or for whose group such a statistic is requested."""
        found: set[int] = set()
        for alike in (*self.alike, *self.groups):
            if any(wanted(stat) for _, stats in alike.requests for stat in stats):
                found.update(i for row in alike.rows.tolist() for i in self.members.get(row, (row,)))
        return np.array(sorted(found), dtype=np.intp)


def as_indices(rows: Indices | Sequence[int]) -> Indices:
    """Indices of rows as an array.

    Raises:
        RuleError: it is no sequence of integers.
    """
    indices = np.asarray(rows)
    if indices.ndim != 1 or (len(indices) and indices.dtype.kind not in "iu"):
        raise RuleError(f"rows must be a sequence of indices of rows, as rows.of('grad')[0] gives them, got {rows!r}")
    return indices.astype(np.intp, copy=False)


def joined(parts: Iterable[Indices]) -> Indices:
    return np.concatenate([*parts, np.zeros(0, dtype=np.intp)])


class Column(NamedTuple):
    """One statistic of one tensor, or its `count`."""

    tensor: str
    stat: str
    names: tuple[str, ...]
    rows: Indices


def columns_of(index: RowIndex, due: Due) -> tuple[list[Column], list[Column]]:
    """The columns of what is counted, one for each tensor, and of its statistics."""
    counted: dict[str, list[int]] = {}
    written: dict[tuple[str, str], list[int]] = {}
    every = (*index.alike, *index.groups)
    for i, alike in enumerate(every):
        stats = requested(alike.requests, due)
        if stats:
            counted.setdefault(alike.tensor, []).append(i)
        for stat in stats:
            written.setdefault((alike.tensor, stat), []).append(i)
    known: dict[tuple[int, ...], tuple[tuple[str, ...], Indices]] = {}  # most columns have the rows of others

    def column(tensor: str, stat: str, parts: list[int]) -> Column:
        key = tuple(parts)
        if key not in known:
            rows = np.sort(joined(every[i].rows for i in parts))
            known[key] = tuple(map(index.names.__getitem__, rows.tolist())), rows
        return Column(tensor, stat, *known[key])

    counts = [column(tensor, "count", parts) for tensor, parts in counted.items()]
    return counts, [column(tensor, stat, parts) for (tensor, stat), parts in written.items()]
