"""Reads from the event files of a run the step views that the consumers of a monitor got while it ran."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.errors import RuleError
from lightning_hooks.plan.row_index import RowIndex
from lightning_hooks.plan.rows import Due
from lightning_hooks.records.facts import StepFacts
from lightning_hooks.records.saved_facts import facts_of
from lightning_hooks.records.saved_index import SavedIndex
from lightning_hooks.records.step_view import StepView, StepWindow
from lightning_hooks.stats.accumulators import MOMENTS
from lightning_hooks.stats.stored import MOMENT_NAMES, STEPS, StoredRows
from lightning_hooks.tensorboard.local_tables import LocalTables
from lightning_hooks.tensorboard.run_index import RunIndex

Array = NDArray[np.float64]
_CHUNK: Final = 64  # steps that are held in memory at a time


class ReadMonitor(NamedTuple):
    """A monitor whose step views a run holds.

    Args:
        prefix: of its tags.
        number: among the monitors with the prefix, in the order of the callbacks.
        rows: the row index of its views.
    """

    prefix: str
    number: int
    rows: RowIndex


def read_monitors(tables: LocalTables, stage: str) -> list[ReadMonitor]:
    """The monitors of a stage, as documented at `Run.monitors`."""
    saved = [each for each in map(SavedIndex.from_json, tables.saved_indices()) if each.stage == stage]
    prefixes = [each.prefix for each in saved]
    return [ReadMonitor(each.prefix, prefixes[:i].count(each.prefix), each.index) for i, each in enumerate(saved)]


def read_views(index: RunIndex, tables: LocalTables, stage: str, prefix: str | None, monitor: int) -> Iterator[StepView]:
    """The step views of a monitor, as documented at `Run.views`; an error is raised at the call, not at the first view."""
    saved = [SavedIndex.from_json(text) for text in tables.saved_indices()]
    of_stage = [each for each in saved if each.stage == stage]
    known = tables.prefix_of(prefix, stage)
    chosen = [each for each in of_stage if each.prefix == known]
    if not 0 <= monitor < len(chosen):
        available = ", ".join(dict.fromkeys(f"stage {each.stage!r} with prefix {each.prefix!r}" for each in saved))
        raise RuleError(
            f"{index.path} has no step views of monitor {monitor}, stage {stage!r} and prefix {known!r}; there are "
            f"{available or 'none: it was written by an older version, or ended before its first step did'}"
        )
    return _Views(index, tables, chosen[monitor]).read()


class _Views:
    """Reads the step views of one stage of a monitor."""

    def __init__(self, index: RunIndex, tables: LocalTables, saved: SavedIndex) -> None:
        self._index, self._tables, self._saved = index, tables, saved
        rows = saved.index
        # For each tensor that was written, by its name with the prefix: the indices and the names of its rows.
        tensors = {f"{saved.tag_prefix}{tensor}": rows.of(tensor) for tensor in dict.fromkeys(rows.tensors)}
        self._tensors = {tensor: its_rows for tensor, its_rows in tensors.items() if (tensor, "count") in tables.vectors()}
        self._summaries = _summaries(index, saved)
        texts = tables.saved_facts(saved.prefix) if saved.stage == "train" else []
        self._facts = [*facts_of(texts)]
        self._changed_at = [step for step, _ in self._facts]
        self._windows = tables.windows(saved.prefix) if saved.stage == "train" else {}

    def read(self) -> Iterator[StepView]:
        """The views in the order of their steps."""
        steps_of = [self._tables.vector_steps(tensor, "count") for tensor in self._tensors]
        steps = np.unique(np.concatenate([*steps_of, np.zeros(0, dtype=np.int64)]))
        for at in range(0, len(steps), _CHUNK):
            yield from self._chunk(steps[at : at + _CHUNK])

    def _chunk(self, steps: NDArray[np.int64]) -> Iterator[StepView]:
        rows, shape = self._saved.index, (len(steps), len(self._saved.index))
        moments = np.tile(MOMENTS.neutral().numpy(), (*shape, 1))
        counted, merged = np.full(shape, np.nan), np.zeros(shape)
        kept = {
            name: np.tile(each.accumulator.neutral().numpy(), (len(steps), len(each.rows), 1))
            for name, each in rows.kept.items()
            if each.accumulator.stored
        }
        numbers: dict[str, tuple[NDArray[np.intp], Array]] = {}
        for tensor, (indices, names) in self._tensors.items():
            stored = self._tables.stored_at(tensor, names, steps)
            counted[:, indices] = stored.numbers("count").T
            is_measured = counted[:, indices] > 0
            for column, name in enumerate(MOMENT_NAMES):
                if name in stored.names:
                    moments[:, indices, column] = np.where(is_measured, stored.numbers(name).T, moments[:, indices, column])
            self._fill_kept(rows, stored, indices, kept)
            if STEPS in stored.names:
                merged[:, indices] = np.nan_to_num(stored.numbers(STEPS).T)
            for name in _plain(rows, stored):
                numbers.setdefault(name, (indices, np.full(shape, np.nan)))[1][:, indices] = stored.numbers(name).T
        times = self._wall_times(steps)
        for i, step in enumerate(steps.tolist()):
            window = None
            if (saved := self._windows.get(step)) is not None:
                window = StepWindow(saved.first, saved.count, merged[i], saved.extremes)
            for array in (moments[i], merged[i], *(each[i] for each in kept.values())):
                array.flags.writeable = False
            yield StepView(
                step=step,
                stage=self._saved.stage,
                wall_time=times[i],
                rows=rows,
                moments=moments[i],
                summaries={tag: values[step] for tag, values in self._summaries.items() if step in values},
                due=_due(rows, counted[i], None if self._saved.stage != "train" else (window.first if window else step, step)),
                kept={name: each[i] for name, each in kept.items()},
                metrics=_metrics(numbers, i),
                ranks=self._saved.ranks,
                facts=self._facts_at(step),
                structure=self._saved.structure,
                window=window,
            )

    def _facts_at(self, step: int) -> StepFacts | None:
        """The facts that were stored last, at the step or before it."""
        stored = bisect_right(self._changed_at, step)
        return self._facts[stored - 1][1] if stored else None

    @staticmethod
    def _fill_kept(rows: RowIndex, stored: StoredRows, indices: NDArray[np.intp], kept: Mapping[str, Array]) -> None:
        for name, each in rows.kept.items():
            slots = each.slots[indices]
            is_kept = slots >= 0  # whether the accumulator keeps numbers of a row
            for column, stored_name in enumerate(each.accumulator.stored):
                if stored_name in stored.names:
                    values = stored.numbers(stored_name)[is_kept].T
                    neutral = kept[name][:, slots[is_kept], column]
                    # NaN stands for a row that was not written, which keeps the neutral number.
                    kept[name][:, slots[is_kept], column] = np.where(np.isnan(values), neutral, values)

    def _wall_times(self, steps: NDArray[np.int64]) -> Sequence[float]:
        times: dict[int, float] = {}
        for tensor, name in ((tensor, "count") for tensor in self._tensors):
            points = self._index.table_points(tensor, name)
            first, last = np.searchsorted(points.steps, [steps[0], steps[-1] + 1]).tolist()
            times.update(zip(points.steps[first:last].tolist(), points.wall_times[first:last].tolist(), strict=True))
        return [times[step] for step in steps.tolist()]


def _due(rows: RowIndex, counted: Array, steps: tuple[int, int] | None) -> Due:
    """The schedules that were due at some of the steps of a view: of the groups of which a row was written, those with a step.

    Args:
        rows: the row index of the views.
        counted: the counts of the rows as written, NaN where a row was not written, [rows].
        steps: the first and the last step of training; None in other stages, where every schedule of a written group was due.
    """
    return frozenset(
        schedule
        for each in (*rows.requested_rows, *rows.groups)
        if not np.isnan(counted[each.rows]).all()
        for schedule, stats in each.requests
        if stats and (steps is None or ((due := schedule.next(steps[0])) is not None and due <= steps[1]))
    )


def _plain(rows: RowIndex, stored: StoredRows) -> list[str]:
    """The names of statistics that are stored as such, not computed from the columns of an accumulator."""
    columns = {name for each in rows.kept.values() for name in each.accumulator.stored}
    return [name for name in stored.names if name not in (*MOMENT_NAMES, STEPS) and name not in columns]


def _metrics(numbers: Mapping[str, tuple[Any, Array]], i: int) -> dict[tuple[int, str], float]:
    return {
        (row, name): value
        for name, (_, values) in numbers.items()
        for row, value in enumerate(values[i].tolist())
        if value == value  # skips NaN, which stands for a row without the statistic
    }


def _summaries(index: RunIndex, saved: SavedIndex) -> dict[str, dict[int, float]]:
    """The global numbers and the reports of transforms: tag without prefix to step to value."""
    summaries: dict[str, dict[int, float]] = {}
    for tag in index.tags("number"):
        name = tag.removeprefix(saved.scalar_prefix)
        if tag.startswith(saved.scalar_prefix) and name.startswith(("run/", "transform_")):
            steps, values = index.numbers(tag)
            summaries[name] = dict(zip(steps.tolist(), values.tolist(), strict=True))
    return summaries
