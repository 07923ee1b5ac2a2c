"""The plan of a monitor: its rules resolved against a model."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from lightning_hooks.plan.row_index import RowIndex
from lightning_hooks.plan.rows import GRADIENT, LOSS, ONLY_EVERY_STEP, WHOLE, Due, Row, requested
from lightning_hooks.rules import FORWARD_TENSORS, PARAM_TENSORS, Watch
from lightning_hooks.rules.schedule import EveryN
from lightning_hooks.stats.accumulators import BUILT_IN, Accumulator, AccumulatorRows
from lightning_hooks.stats.accumulators.function import FunctionMean
from lightning_hooks.stats.user_statistics import UserStatistic
from lightning_hooks.tensor_kinds import first_holder

LOSS_SCALED = ("input_grad", "output_grad")
"""The tensors of modules that a loss scale multiplies."""


@dataclass
class Matched:
    """A rule with the rows that it requests.

    Args:
        rule: the rule.
        where: the rule in messages: `watch[0]`.
        members: the indices of the rows.
        groups: the groups into which `group_by` of the rule merges rows.
    """

    rule: Watch
    where: str
    members: array[int] = field(default_factory=lambda: array("i"))
    groups: list[Row] = field(default_factory=list)


@dataclass
class Plan:
    """The rows and groups of a monitor, with the rules that request them.

    Args:
        rows: the rows, in the order of the table.
        rules: each rule with its rows.
        schedules: the schedules of all rules, without duplicates.
        groups: the groups of rows; their indices follow after all rows.
        param_row_of: maps each `update` row with a `ratio` to the row of its parameter, and each group of such rows to the
            group of their parameters.
        accumulators: the user's own accumulators that rules name.
        drawn_by_default: the schedules at which only histograms are due that no rule names.
    """

    rows: list[Row]
    rules: list[Matched]
    schedules: tuple[EveryN, ...]
    groups: list[Row] = field(default_factory=list)
    param_row_of: dict[int, int] = field(default_factory=dict)
    accumulators: tuple[Accumulator, ...] = ()
    drawn_by_default: frozenset[EveryN] = frozenset()
    _on_request_at: dict[Due, Mapping[str, frozenset[int]]] = field(default_factory=dict, repr=False)

    @cached_property
    def index(self) -> RowIndex:
        """The row index of the step views; the plan creates one and always returns the same object."""
        return RowIndex.of_rows(self.rows, self.groups, self.param_row_of, self.kept)

    @cached_property
    def tensors(self) -> tuple[str, ...]:
        """The names of the tensors of the rows, without duplicates."""
        return tuple(dict.fromkeys(row.tensor for row in self.rows))

    @cached_property
    def loss_scaled(self) -> list[int]:
        """The indices of the rows that a loss scale multiplies."""
        return [row.index for row in self.rows if row.kind in (*LOSS_SCALED, LOSS)]

    @cached_property
    def loss_row(self) -> int | None:
        """The index of the row of the loss; None if the plan has none."""
        return self.whole_row(LOSS)

    def whole_row(self, tensor: str) -> int | None:
        """The index of the row of a tensor in `WHOLE`; None if the plan has none."""
        return self._whole_rows.get(tensor)

    @cached_property
    def _whole_rows(self) -> dict[str, int]:
        """The indices of the rows of the tensors in `WHOLE`, by tensor."""
        return {row.tensor: row.index for row in reversed(self.rows) if row.tensor in WHOLE}

    @cached_property
    def is_of_every_step(self) -> bool:
        """Whether the loss and the norm of the gradient are measured at every step, and other rows at fewer."""
        return self.whole_row(GRADIENT) is not None

    def is_between(self, due: Due) -> bool:
        """Whether only what is measured at every step is due."""
        return self.is_of_every_step and due == ONLY_EVERY_STEP

    @cached_property
    def written_rows(self) -> frozenset[int]:
        """The indices of the rows that a rule of the user requests."""
        return frozenset(member for each in self.rules if each.rule.is_written for member in each.members)

    @cached_property
    def named_schedules(self) -> Due:
        """The schedules of the statistics that rules name."""
        return frozenset(self.schedules) - self.drawn_by_default

    @property
    def rows_and_groups(self) -> list[Row]:
        """All rows, then all groups."""
        return [*self.rows, *self.groups]

    @property
    def charts(self) -> list[tuple[str, str]]:
        """The tensor and the statistic of every chart, without duplicates."""
        return list(
            dict.fromkeys((each.tensor, stat) for each in self.rows_and_groups for stat in each.stats if stat != "histogram")
        )

    def forward(self) -> Plan:
        """The plan for stages other than training: the rows of forward tensors, due at every batch.

        Histograms that no rule names are omitted, because a histogram of every batch takes more time.
        """
        kept = [row for row in self.rows if row.kind in FORWARD_TENSORS]
        new_index = {row.index: i for i, row in enumerate(kept)}
        rows = [
            replace(row, index=i, requests=((EveryN(), requested(row.requests, self.named_schedules)),))
            for i, row in enumerate(kept)
        ]
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
                matched,
                members=array("i", (new_index[member] for member in matched.members if member in new_index)),
                groups=[groups[group.index] for group in matched.groups if group.index in groups],
            )
            for matched in self.rules
        ]
        return Plan(rows, rules, (EveryN(),), [*groups.values()], accumulators=self.accumulators)

    @property
    def copied_rows(self) -> dict[int, int | None]:
        """Maps each row of a parameter to the first rank that holds a shard, or to None if every rank holds the whole."""
        return {r.index: first_holder(r.target.value) for r in self.rows if r.kind in PARAM_TENSORS}

    @property
    def metrics(self) -> list[tuple[int, UserStatistic]]:
        """The user's metrics, each with the index of its row. A metric knows its row for messages."""
        metrics = [(row, user) for row in self.rows for user in row.users.values() if user.is_metric]
        return [(row.index, replace(user, row=self.label(row.index))) for row, user in metrics]

    @cached_property
    def kept(self) -> tuple[AccumulatorRows, ...]:
        """The accumulators besides the moments that compute requested statistics, each with its rows."""
        index = RowIndex.of_rows(self.rows, self.groups)
        served = [
            AccumulatorRows(each, tuple(index.rows_with(each.serves).tolist()), self._options(each))
            for each in (*BUILT_IN[1:], *self.accumulators)
        ]
        functions = {name: user for row in self.rows_and_groups for name, user in row.users.items() if not user.is_metric}
        user_functions = [
            AccumulatorRows(FunctionMean(name, user), tuple(index.rows_with(name.__eq__).tolist()))
            for name, user in functions.items()
        ]
        return tuple(each for each in (*served, *user_functions) if each.rows)

    def _options(self, accumulator: Accumulator) -> dict[int, Any]:
        """The module and the unit options of each row with units, for an accumulator with a store; else empty."""
        if not accumulator.separate:
            return {}
        return {row.index: (row.target.value, row.units) for row in self.rows if row.units is not None}

    def on_request_at(self, due: Due) -> Mapping[str, frozenset[int]]:
        """The rows of each accumulator on request that are measured when these schedules are due, by its name."""
        if due not in self._on_request_at:
            self._on_request_at[due] = {
                each.accumulator.name: self._rows_requesting(each.accumulator, due)
                for each in self.kept
                if each.accumulator.on_request
            }
        return self._on_request_at[due]

    def _rows_requesting(self, accumulator: Accumulator, due: Due) -> frozenset[int]:
        """The rows of which a statistic of the accumulator is requested when these schedules are due, alone or in a group."""
        asking = [each for each in self.rows_and_groups if any(map(accumulator.serves, requested(each.requests, due)))]
        return frozenset(row for each in asking for row in each.measured)

    def label(self, row: int) -> str:
        """The description of a row in messages: `grad of encoder.weight`."""
        return f"{self.rows[row].tensor} of {self.rows[row].name}"
