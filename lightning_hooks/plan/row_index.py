"""Row index: the names, tensors and requests of the rows of step views. A plan has one row index, which does not change."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.errors import RuleError
from lightning_hooks.plan.rows import LOSS, WHOLE, Due, Requests, Row, requested
from lightning_hooks.stats.accumulators import Accumulator, AccumulatorRows
from lightning_hooks.stats.columns import by_starts
from lightning_hooks.stats.statistics import MAGNITUDE_STATS

Indices = NDArray[np.intp]


class RequestedRows(NamedTuple):
    """Rows of one tensor for which rules request the same statistics at the same schedules."""

    tensor: str
    requests: Requests
    rows: Indices


class KeptRows(NamedTuple):
    """The rows and groups of a step view that keep the state of an accumulator.

    The states of these rows are an array [rows that keep the state, columns] in a view; a slot is a position in this array.

    Args:
        accumulator: the accumulator, as step views use it.
        rows: the rows that keep the state, in the order of their slots.
        slots: the slot of each row, int [rows and groups]; -1 for rows without the state and for groups.
        members: for each group of which all rows keep the state, the slots of these rows.
        have: whether each row keeps the state, or all rows of a group do, bool [rows and groups].
    """

    accumulator: Accumulator
    rows: tuple[int, ...]
    slots: Indices
    members: Mapping[int, Indices]
    have: NDArray[np.bool_]

    @classmethod
    def of(cls, kept: AccumulatorRows, count: int, groups: Mapping[int, tuple[int, ...]]) -> KeptRows:
        """Assign slots to the rows of an accumulator.

        Args:
            kept: the accumulator with its rows.
            count: the number of rows and groups together.
            groups: the indices of the rows of each group.
        """
        slots = np.full(count, -1, dtype=np.intp)
        slots[list(kept.rows)] = np.arange(len(kept.rows))
        members = {group: slots[list(each)] for group, each in groups.items() if len(each) and (slots[list(each)] >= 0).all()}
        have = slots >= 0
        have[list(members)] = True
        return cls(kept.accumulator.for_views(), kept.rows, slots, members, have)

    def take(self, numbers: NDArray[np.float64], rows: Indices) -> NDArray[np.float64]:
        """The states of rows and groups, float64 [len(rows), columns]; that of a group is merged from its rows.

        Args:
            numbers: the states of all slots, float64 [slots, columns].
            rows: the indices of the rows and groups, each of which must keep the state.
        """
        slots = self.slots[rows]
        if (slots >= 0).all():
            return numbers[slots]
        parts = [self.members[row] if row in self.members else self.slots[[row]] for row in rows.tolist()]
        starts = np.cumsum([0, *map(len, parts)], dtype=np.intp)[: len(parts)]
        all_slots = np.concatenate(parts)
        with np.errstate(invalid="ignore", over="ignore"):
            merged: NDArray[np.float64] = self.accumulator.merge(
                numbers[all_slots], by_starts(starts, len(all_slots)), over_rows=True
            )
        return merged


class RowIndex:
    """The names, tensors and requests of the rows of a step view: first the rows of the table, then the groups.

    A row index holds names and numbers but no module or parameter, so a view may be kept after the fit.

    Args:
        names: the dotted name of each row.
        tensors: the tensor of each row: `grad`, `output[0]` …
        module_types: the class name of the module of each row, or of the module that holds the parameter; empty for a group.
        members: maps the index of each group to the indices of the rows that the group merges.
        order: the indices of the rows of modules in the order in which they were first measured in the first watched step:
            `input` and `output` in the order of the calls, gradients in the order of backward. Rows that this step did not
            measure follow in the order of their definition.
        param_row_of: maps each `update` row with a `ratio` to the row of its parameter, and each group of such rows to the
            group of their parameters.
        requested_rows: the rows of the table, together where tensor and requests are the same.
        groups: the groups, one for each entry.
        kept: the accumulators besides the moments, each with its rows.
        magnitudes: whether the moments include sums of magnitudes and counts of underflows.
    """

    def __init__(
        self,
        names: Sequence[str] = (),
        tensors: Sequence[str] = (),
        module_types: Sequence[str] = (),
        members: Mapping[int, tuple[int, ...]] | None = None,
        order: Sequence[int] = (),
        param_row_of: Mapping[int, int] | None = None,
        requested_rows: Sequence[RequestedRows] = (),
        groups: Sequence[RequestedRows] = (),
        kept: Sequence[AccumulatorRows] = (),
        *,
        magnitudes: bool = False,
    ) -> None:
        self.names, self.tensors, self.module_types = tuple(names), tuple(tensors), tuple(module_types)
        self.members: Mapping[int, tuple[int, ...]] = dict(members or {})
        self.order = tuple(order)
        self.param_row_of: Mapping[int, int] = dict(param_row_of or {})
        self.requested_rows, self.groups = tuple(requested_rows), tuple(groups)
        self.kept = {each.accumulator.name: KeptRows.of(each, len(self.names), self.members) for each in kept}
        self.magnitudes = magnitudes
        self._by_tensor: dict[str, tuple[Indices, tuple[str, ...]]] = {}

    @classmethod
    def of_rows(
        cls,
        rows: Sequence[Row],
        groups: Sequence[Row] = (),
        param_row_of: Mapping[int, int] | None = None,
        kept: Sequence[AccumulatorRows] = (),
    ) -> RowIndex:
        """The index of the rows and groups of a plan.

        Args:
            rows: the rows of the plan.
            groups: the groups of these rows.
            param_row_of: see the class.
            kept: see the class.
        """
        by_requests: dict[tuple[str, Requests], list[int]] = {}
        for row in rows:
            by_requests.setdefault((row.tensor, row.requests), []).append(row.index)
        rows_and_groups = (*rows, *groups)
        return cls(
            [row.name for row in rows_and_groups],
            [row.tensor for row in rows_and_groups],
            [*("" if row.tensor in WHOLE else type(row.target.owner).__name__ for row in rows), *("" for _ in groups)],
            {group.index: group.members for group in groups},
            [row.index for row in rows if row.target.owner is row.target.value and row.tensor not in WHOLE],
            param_row_of,
            [RequestedRows(*key, np.array(indices)) for key, indices in by_requests.items()],
            [RequestedRows(group.tensor, group.requests, np.array([group.index])) for group in groups],
            kept,
            magnitudes=any(stat in MAGNITUDE_STATS for row in rows_and_groups for stat in row.stats),
        )

    def __len__(self) -> int:
        return len(self.names)

    def of(self, tensor: str) -> tuple[Indices, tuple[str, ...]]:
        """The indices and the names of all rows and groups of a tensor. Every call returns the same objects."""
        if tensor not in self._by_tensor:
            indices = np.flatnonzero(np.array([each == tensor for each in self.tensors], dtype=np.bool_))
            indices.flags.writeable = False
            self._by_tensor[tensor] = indices, tuple(map(self.names.__getitem__, indices.tolist()))
        return self._by_tensor[tensor]

    @cached_property
    def param_rows(self) -> Indices:
        """For each row and group of an `update`, the row or group of its parameter, by which a ratio divides; else -1."""
        params = {name: row for row, name in zip(*self.of("param"), strict=True)}
        found = [
            self.param_row_of.get(row, params.get(name, -1) if tensor == "update" else -1)
            for row, (name, tensor) in enumerate(zip(self.names, self.tensors, strict=True))
        ]
        return np.array(found, dtype=np.intp)

    def set_execution_order(self, rows: list[int]) -> None:
        """Move these rows to the front of `order`, by their first occurrence; the other rows follow."""
        self.order = tuple(dict.fromkeys((*rows, *self.order)))

    def rows_with(self, is_requested: Callable[[str], bool]) -> Indices:
        """The rows (not groups) for which a statistic is requested, for the row itself or for a group that merges the row.

        Args:
            is_requested: says for the name of a statistic whether to include its rows.
        """
        indices: set[int] = set()
        for each in (*self.requested_rows, *self.groups):
            if any(is_requested(stat) for _, stats in each.requests for stat in stats):
                indices.update(i for row in each.rows.tolist() for i in self.members.get(row, (row,)))
        return np.array(sorted(indices), dtype=np.intp)


def as_indices(rows: Indices | Sequence[int]) -> Indices:
    """The indices of rows as an array.

    Raises:
        RuleError: `rows` is not a sequence of integers.
    """
    indices = np.asarray(rows)
    if indices.ndim != 1 or (len(indices) and indices.dtype.kind not in "iu"):
        raise RuleError(f"rows must be a sequence of indices of rows, as rows.of('grad')[0] gives them, got {rows!r}")
    return indices.astype(np.intp, copy=False)


def joined(parts: Iterable[Indices]) -> Indices:
    """The concatenation of index arrays, of which there may be none."""
    return np.concatenate([*parts, np.zeros(0, dtype=np.intp)])


class StatColumn(NamedTuple):
    """One statistic of one tensor, or the `count` of its elements, for the rows that are due."""

    tensor: str
    stat: str
    names: tuple[str, ...]
    rows: Indices


def columns_of(index: RowIndex, due: Due) -> tuple[list[StatColumn], list[StatColumn]]:
    """The columns that are due: first one `count` for each tensor, then one column for each of its statistics."""
    counted: dict[str, list[int]] = {}
    written: dict[tuple[str, str], list[int]] = {}
    rows_and_groups = (*index.requested_rows, *index.groups)
    for i, each in enumerate(rows_and_groups):
        stats = requested(each.requests, due)
        # Count the row of the loss too: no rule requests the loss, which is measured whenever any rule is due.
        if stats or (each.tensor == LOSS and any(schedule in due for schedule, _ in each.requests)):
            counted.setdefault(each.tensor, []).append(i)
        for stat in stats:
            written.setdefault((each.tensor, stat), []).append(i)
    # Columns with the same rows, as most have, share the tuple of names and the array of indices.
    shared: dict[tuple[int, ...], tuple[tuple[str, ...], Indices]] = {}

    def column(tensor: str, stat: str, parts: list[int]) -> StatColumn:
        key = tuple(parts)
        if key not in shared:
            rows = np.sort(joined(rows_and_groups[i].rows for i in parts))
            shared[key] = tuple(map(index.names.__getitem__, rows.tolist())), rows
        return StatColumn(tensor, stat, *shared[key])

    counts = [column(tensor, "count", parts) for tensor, parts in counted.items()]
    return counts, [column(tensor, stat, parts) for (tensor, stat), parts in written.items()]
