"""Limits: which rows a monitor writes as scalars and histograms, decided once for all its stages and schedules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lightning_hooks.plan.groups import block_of
from lightning_hooks.plan.row_index import RowIndex, columns_of
from lightning_hooks.records.layout import Levels
from lightning_hooks.records.roll_up import RollUp, StageColumn, roll_up


class _Decision:
    """What is written where a limit is exceeded: each stage, tensor and statistic with its names and its level."""

    def __init__(self, columns: list[StageColumn], rollup: RollUp) -> None:
        self.rollup = rollup
        self.by_key = {column[:3]: (column, rollup.levels.get(i)) for i, column in enumerate(columns)}

    def levels(self, wanted: str) -> dict[tuple[str, str], int]:
        """The levels of a stage, by tensor and statistic."""
        every = ((stage, tensor, stat, level) for (stage, tensor, stat), (_, level) in self.by_key.items())
        return {(tensor, stat): level for stage, tensor, stat, level in every if stage == wanted and level is not None}

    @property
    def dropped(self) -> list[str]:
        """The statistics that are not written of every tensor."""
        return list(dict.fromkeys(stat for (_, _, stat), (_, level) in self.by_key.items() if level is None))


class Limits:
    """The limits of a monitor on scalars and on histograms, over all its stages together.

    Args:
        stages: what each stage writes.
        max_scalars: how many scalars there may be before rows are merged along the module tree.
        max_histograms: the same of histograms.
        pinned: names that are never merged.
    """

    def __init__(self, stages: Mapping[str, RowIndex], max_scalars: int, max_histograms: int, pinned: Iterable[str]) -> None:
        self.max_scalars, self.max_histograms = max_scalars, max_histograms
        self._pinned = frozenset(pinned)
        columns = [column for stage, index in stages.items() for column in self._columns(stage, index)]
        self.scalars = _decided([column for column in columns if column.stat != "histogram"], max_scalars)
        self.histograms = _decided([column for column in columns if column.stat == "histogram"], max_histograms)

    def _columns(self, stage: str, index: RowIndex) -> Iterable[StageColumn]:
        every = frozenset(schedule for each in (*index.alike, *index.groups) for schedule, _ in each.requests)
        groups = {index.names[row] for row in index.members}
        for column in columns_of(index, every)[1]:
            kept = frozenset(name for name in column.names if name in self._pinned or name in groups)
            names = tuple(
                name for row, name in zip(column.rows.tolist(), column.names, strict=True) if row not in index.members
            )
            yield StageColumn(stage, column.tensor, column.stat, names, kept)

    @property
    def exceeded(self) -> bool:
        """Whether anything is merged."""
        return self.scalars is not None or self.histograms is not None

    def levels(self, stage: str) -> Levels:
        """What the layout of a stage needs to know."""
        scalars, histograms = self.scalars, self.histograms
        return Levels(
            None if scalars is None else scalars.levels(stage),
            None if histograms is None else histograms.levels(stage),
            self._pinned,
        )

    def has_tag(self, stage: str, tensor: str, stat: str, name: str) -> bool:
        """Whether a row has a scalar or a histogram of its own."""
        decision = self.histograms if stat == "histogram" else self.scalars
        if decision is None:
            return True
        column, level = decision.by_key[stage, tensor, stat]
        return name in column.kept or (level is not None and block_of(name, level) == name)

    def merged_tags(self, stage: str) -> set[str]:
        """The tags, without prefix, of what is merged along the module tree."""
        found = [each for decision in (self.scalars, self.histograms) if decision for each in decision.by_key.values()]
        return {
            f"{column.tensor}_{column.stat}/{block_of(name, level)}"
            for column, level in found
            if column.stage == stage and level is not None
            for name in column.names
        }

    def warning(self, path: str, every_n_steps: int) -> str:
        """What a user is told; empty where everything is within the limits.

        Args:
            path: of the run, from which the whole table can be read.
            every_n_steps: the interval of histograms.
        """
        said = []
        if self.scalars is not None:
            rollup, dropped = self.scalars.rollup, self.scalars.dropped
            without = f"; {', '.join(dropped)} not for every tensor" if dropped else ""
            said.append(
                f"{rollup.total} scalars are more than max_scalars={self.max_scalars}: rows are merged exactly along the "
                f"module tree, and {rollup.written} scalars are written (the first statistic of every tensor at level "
                f"{rollup.level} of {rollup.deepest}, the others where there is room{without}). max_scalars="
                f"{rollup.next_limit} keeps {_next(rollup)}; scalars= keeps chosen names in full; "
                f"lightning_hooks.read_run({path}).table(tensor, stat) has every row"
            )
        if self.histograms is not None:
            rollup = self.histograms.rollup
            said.append(
                f"{rollup.total} histograms are more than max_histograms={self.max_histograms}: they are added up along the "
                f"module tree at level {rollup.level} of {rollup.deepest} ({rollup.written} histograms, at most every "
                f"{every_n_steps} steps: histogram_every_n_steps). max_histograms={rollup.next_limit} keeps {_next(rollup)}"
            )
        return ". ".join(said)


def _decided(columns: list[StageColumn], limit: int) -> _Decision | None:
    rollup = roll_up(columns, limit)
    return _Decision(columns, rollup) if rollup.total > limit else None


def _next(rollup: RollUp) -> str:
    return f"level {rollup.level + 1}" if rollup.level < rollup.deepest else "every statistic of every row"
