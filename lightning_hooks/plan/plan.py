"""The plan of a monitor: its rules resolved against a model."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from lightning_hooks.plan.row_index import RowIndex
from lightning_hooks.plan.rows import Due, Row, requested
from lightning_hooks.rules import FORWARD_TENSORS, PARAM_TENSORS, Watch
from lightning_hooks.rules.schedule import EveryN
from lightning_hooks.stats.accumulators import BUILT_IN, Accumulator, Kept
from lightning_hooks.stats.accumulators.function import FunctionMean
from lightning_hooks.stats.user_statistics import UserStatistic
from lightning_hooks.tensor_kinds import first_holder

LOSS_SCALED = ("input_grad", "output_grad")
"""The tensors that are multiplied by a loss scale."""


@dataclass
class Matched:
    """What a rule matched."""

    rule: Watch
    where: str  # its name in messages
    members: array[int] = field(default_factory=lambda: array("i"))  # the indices of its rows
    groups: list[Row] = field(default_factory=list)  # where it merges rows


@dataclass
class Plan:
    """Every row of a monitor.

    Args:
        rows: in the order of the table.
        rules: what each rule matched.
        schedules: of all rules.
        groups: of rows, with the indices that follow theirs.
        param_row_of: of an update row the row of its parameter, of a group of updates the group of these.
        accumulators: the user's own, which rules name.
    """

    rows: list[Row]
    rules: list[Matched]
    schedules: tuple[EveryN, ...]
    groups: list[Row] = field(default_factory=list)
    param_row_of: dict[int, int] = field(default_factory=dict)
    accumulators: tuple[Accumulator, ...] = ()
    _stored_at: dict[Due, Mapping[str, frozenset[int]]] = field(default_factory=dict, repr=False)

    @cached_property
    def index(self) -> RowIndex:
        """What step views say of its rows; one object for as long as the plan is."""
        return RowIndex.of_rows(self.rows, self.groups, self.param_row_of, self.kept)

    @cached_property
    def tensors(self) -> tuple[str, ...]:
        """The tensors of its rows, each once."""
        return tuple(dict.fromkeys(row.tensor for row in self.rows))

    @cached_property
    def loss_scaled(self) -> list[int]:
        """The indices of the rows that a loss scale multiplies."""
        return [row.index for row in self.rows if row.kind in LOSS_SCALED]

    @property
    def rows_and_groups(self) -> list[Row]:
        """The rows, and the groups."""
        return [*self.rows, *self.groups]

    @property
    def charts(self) -> list[tuple[str, str]]:
        """Tensor and statistic of every chart, each once."""
        return list(
            dict.fromkeys((each.tensor, stat) for each in self.rows_and_groups for stat in each.stats if stat != "histogram")
        )

    def forward(self) -> Plan:
        """A plan of the rows that the forward pass fills, each at every batch: what is watched outside training."""
        kept = [row for row in self.rows if row.kind in FORWARD_TENSORS]
        new_index = {row.index: i for i, row in enumerate(kept)}
        rows = [replace(row, index=i, requests=((EveryN(), row.stats),)) for i, row in enumerate(kept)]
        groups = {
            group.index: replace(
                group,
                index=len(rows) + i,
                requests=((EveryN(), group.stats),),
                members=tuple(new_index[member] for member in group.members),
            )
            for i, group in enumerate(group for group in self.groups if group.kind in FORWARD_TENSORS)
        }
        rules = [
            replace(
                found,
                members=array("i", (new_index[member] for member in found.members if member in new_index)),
                groups=[groups[group.index] for group in found.groups if group.index in groups],
            )
            for found in self.rules
        ]
        return Plan(rows, rules, (EveryN(),), [*groups.values()], accumulators=self.accumulators)

    @property
    def copied_rows(self) -> dict[int, int | None]:
        """Rows of parameters, of which each rank or group of ranks has a copy, with the first rank of the group."""
        return {r.index: first_holder(r.target.value) for r in self.rows if r.kind in PARAM_TENSORS}

    @property
    def metrics(self) -> list[tuple[int, UserStatistic]]:
        """The rows that keep a metric of a user's, which names the row."""
        metrics = [(row, user) for row in self.rows for user in row.users.values() if user.is_metric]
        return [(row.index, replace(user, row=self.label(row.index))) for row, user in metrics]

    @cached_property
    def kept(self) -> tuple[Kept, ...]:
        """What rows keep besides moments: the accumulators behind the statistics that rules ask for."""
        asked = RowIndex.of_rows(self.rows, self.groups)
        served = [
            Kept(each, tuple(asked.rows_with(each.serves).tolist()), self._options(each))
            for each in (*BUILT_IN[1:], *self.accumulators)
        ]
        functions = {name: user for row in self.rows_and_groups for name, user in row.users.items() if not user.is_metric}
        own = [Kept(FunctionMean(name, user), tuple(asked.rows_with(name.__eq__).tolist())) for name, user in functions.items()]
        return tuple(each for each in (*served, *own) if each.rows)

    def _options(self, accumulator: Accumulator) -> dict[int, Any]:
        """What the store of an accumulator needs to know of its rows."""
        if not accumulator.separate:
            return {}
        return {row.index: (row.target.value, row.units) for row in self.rows if row.units is not None}

    def stored_at(self, due: Due) -> Mapping[str, frozenset[int]]:
        """The rows that each store measures when these schedules are due, by the name of the accumulator."""
        if due not in self._stored_at:
            self._stored_at[due] = {
                each.accumulator.name: frozenset(
                    row for row in each.rows if any(map(each.accumulator.serves, requested(self.rows[row].requests, due)))
                )
                for each in self.kept
                if each.accumulator.separate
            }
        return self._stored_at[due]

    def label(self, row: int) -> str:
        """A row in messages: its tensor and its module or parameter."""
        return f"{self.rows[row].tensor} of {self.rows[row].name}"
