"""Limits on scalars and histograms: decides once, for all stages and schedules of a monitor, which rows are merged."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from lightning_hooks.plan.groups import block_of
from lightning_hooks.plan.row_index import RowIndex, columns_of
from lightning_hooks.records.levels import Levels
from lightning_hooks.records.roll_up import RollUp, StageColumn, roll_up

MAX_SCALARS: Final = 500
MAX_CHARTS: Final = 100
MAX_HISTOGRAMS: Final = 100
HISTOGRAM_EVERY_N_STEPS: Final = 50
"""The defaults of a `StatsMonitor` and of the event file of a plain loop; without rules of its own it has `MAX_CHARTS`."""
CHARTS: Final = frozenset({("grad", "norm"), ("update", "ratio"), ("output", "std")})
"""The charts of a monitor without rules of its own, by tensor and statistic: what people look at. The page has the others."""


class _Decision:
    """The level of each stage, tensor and statistic if a limit is exceeded; None for a statistic that is not written."""

    def __init__(self, columns: list[StageColumn], rollup: RollUp) -> None:
        self.rollup = rollup
        levels = {i: level for i, level in rollup.levels.items() if columns[i].names}
        self.by_key = {column[:3]: (column, levels.get(i)) for i, column in enumerate(columns)}

    def levels(self, stage: str) -> dict[tuple[str, str], int]:
        """The levels of a stage, by tensor and statistic."""
        levels = {key[1:]: level for key, (_, level) in self.by_key.items() if key[0] == stage}
        return {key: level for key, level in levels.items() if level is not None}

    @property
    def dropped(self) -> list[str]:
        """The statistics that are not written for at least one tensor."""
        return list(dict.fromkeys(stat for (_, _, stat), (_, level) in self.by_key.items() if level is None))


class Limits:
    """The limits of a monitor on scalars and on histograms, over all its stages together.

    Args:
        stages: the row index of each stage.
        max_scalars: the number of scalars above which rows are merged along the module tree.
        max_histograms: the number of histograms above which TensorBoard's are added up along the module tree; the table of an
            event file has that of every row.
        pinned: the names of rows that are never merged.
        charts: the statistics that are written as scalars, by tensor; None for all.
    """

    def __init__(
        self,
        stages: Mapping[str, RowIndex],
        max_scalars: int,
        max_histograms: int,
        pinned: Iterable[str],
        charts: Collection[tuple[str, str]] | None = None,
    ) -> None:
        self.max_scalars, self.max_histograms = max_scalars, max_histograms
        self._pinned = frozenset(pinned)
        columns = [column for stage, index in stages.items() for column in self._columns(stage, index)]
        self._charts = charts
        self.scalars = _decide([column for column in columns if column.stat != "histogram"], max_scalars, charts)
        self.histograms = _decide([column for column in columns if column.stat == "histogram"], max_histograms)

    def _columns(self, stage: str, index: RowIndex) -> Iterable[StageColumn]:
        schedules = frozenset(schedule for each in (*index.requested_rows, *index.groups) for schedule, _ in each.requests)
        groups = {index.names[row] for row in index.members}
        for column in columns_of(index, schedules)[1]:
            kept = frozenset(name for name in column.names if name in self._pinned or name in groups)
            names = tuple(
                name for row, name in zip(column.rows.tolist(), column.names, strict=True) if row not in index.members
            )
            yield StageColumn(stage, column.tensor, column.stat, names, kept)

    @property
    def exceeded(self) -> bool:
        """Whether the scalars or the histograms exceed their limit."""
        return self.scalars is not None or self.histograms is not None

    def levels(self, stage: str) -> Levels:
        """The levels at which the layout of a stage merges rows."""
        scalars, histograms = self.scalars, self.histograms
        return Levels(
            None if scalars is None else scalars.levels(stage),
            None if histograms is None else histograms.levels(stage),
            self._pinned,
        )

    def has_tag(self, stage: str, tensor: str, stat: str, name: str) -> bool:
        """Whether the statistic of a row is written as a scalar or histogram of this row alone."""
        decision = self.histograms if stat == "histogram" else self.scalars
        if decision is None:
            return True
        column, level = decision.by_key[stage, tensor, stat]
        return name in column.kept or (level is not None and block_of(name, level) == name)

    def merged_tags(self, stage: str) -> set[str]:
        """The tags, without prefix, of the scalars and histograms of blocks of the module tree."""
        decisions = [each for each in (self.scalars, self.histograms) if each is not None]
        return {
            f"{column.tensor}_{column.stat}/{block_of(name, level)}"
            for decision in decisions
            for column, level in decision.by_key.values()
            if column.stage == stage and level is not None
            for name in column.names
        }

    def warning(self) -> str:
        """The warning for the user, in one line; empty if no limit is exceeded, or the charts are those of the package."""
        if self._charts is not None:
            return ""
        sentences = [
            f"{decision.rollup.total} {noun} are more than max_{noun}={limit}: {decision.rollup.written} are written, merged "
            f"along the module tree (tables have every row); max_{noun}={decision.rollup.next_limit} keeps "
            f"{_next(decision.rollup)}"
            for noun, decision, limit in (
                ("scalars", self.scalars, self.max_scalars),
                ("histograms", self.histograms, self.max_histograms),
            )
            if decision is not None
        ]
        return ". ".join([*sentences, "See docs/rules.md#many-layers"]) if sentences else ""

    def details(self, path: str, every_n_steps: int) -> str:
        """What the limits do, for the page of the run; empty if no limit is exceeded.

        Args:
            path: the folder of the run, from which the user can read the whole table.
            every_n_steps: the interval of histograms.
        """
        sentences = []
        if self._charts is not None and self.scalars is not None:
            names = ", ".join(f"{stat} of {tensor}" for tensor, stat in sorted(self._charts))
            sentences.append(
                f"the charts are {names}, {self.scalars.rollup.written} in all; the page has every statistic of every row, and "
                f"so has lightning_hooks.read_run({path}).table(tensor, stat). max_scalars= writes any statistics up to a "
                "number, scalars= chosen names in full"
            )
        elif self.scalars is not None:
            rollup, dropped = self.scalars.rollup, self.scalars.dropped
            without = f"; {', '.join(dropped)} not for every tensor" if dropped else ""
            sentences.append(
                f"{rollup.total} scalars are more than max_scalars={self.max_scalars}: rows are merged exactly along the "
                f"module tree, and {rollup.written} scalars are written (the first statistic of every tensor at level "
                f"{rollup.level} of {rollup.deepest}, the others where there is room{without}). max_scalars="
                f"{rollup.next_limit} keeps {_next(rollup)}; scalars= keeps chosen names in full; "
                f"lightning_hooks.read_run({path}).table(tensor, stat) has every row"
            )
        if self.histograms is not None:
            rollup = self.histograms.rollup
            sentences.append(
                f"{rollup.total} histograms are more than max_histograms={self.max_histograms}: the page has all of them, and "
                f"in TensorBoard they are added up along the module tree at level {rollup.level} of {rollup.deepest} "
                f"({rollup.written} histograms, at most every {every_n_steps} steps: histogram_every_n_steps). "
                f"max_histograms={rollup.next_limit} keeps {_next(rollup)}"
            )
        return ". ".join(sentences)


class TablesOnly(Limits):
    """The limits of a monitor that writes neither scalars nor histograms, only tables."""

    def __init__(self) -> None:
        super().__init__({}, 0, 0, ())

    def levels(self, stage: str) -> Levels:
        """Levels at which no statistic is written."""
        return Levels({}, {}, frozenset())

    def has_tag(self, stage: str, tensor: str, stat: str, name: str) -> bool:
        """False: no row has a tag."""
        return False


def _decide(columns: list[StageColumn], limit: int, charts: Collection[tuple[str, str]] | None = None) -> _Decision | None:
    """The levels of columns; None if every row of each is written. Of a column beside the charts, only kept rows are."""

    def chosen(column: StageColumn) -> StageColumn:
        is_chart = charts is None or (column.tensor.partition("[")[0], column.stat) in charts
        return column if is_chart else column._replace(names=())

    of_charts = [chosen(column) for column in columns]
    rollup = roll_up(of_charts, limit)
    return _Decision(of_charts, rollup) if charts is not None or rollup.total > limit else None


def _next(rollup: RollUp) -> str:
    """What the next higher limit keeps, for the warning."""
    return f"level {rollup.level + 1}" if rollup.level < rollup.deepest else "every statistic of every row"
