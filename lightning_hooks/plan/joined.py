"""Joins the plans of several owners into the plan of one table, in which equal rows are measured once for all of them."""

from __future__ import annotations

import copy
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.plan.plan import Matched, Plan
from lightning_hooks.plan.row_index import Indices
from lightning_hooks.plan.rows import WHOLE, Demand, Due, Requests, Row
from lightning_hooks.plan.user_registry import UserRegistry
from lightning_hooks.stats.accumulators import BUILT_IN, Accumulator
from lightning_hooks.stats.accumulators.function import key_of
from lightning_hooks.stats.metrics import METRICS
from lightning_hooks.stats.pairs import PAIR_STATS
from lightning_hooks.stats.user_statistics import UserStatistic

Turn = Callable[[Row], int]
"""Returns, for a row of a plan, the number of changes that run before the owner of the plan reads the tensor of the row."""
Key = tuple[int, str, int, int]
"""What makes a row of a table: the id of its module or parameter, the tensor, the turn, and the number of a split."""


class Part:
    """What a plan has in the table of a joined plan.

    Args:
        number: of the owner.
        plan: the plan of the owner, which its step views show.
        rows: the row of the table for each row of the plan.
        names: the name in the table of each user's statistic and accumulator that the table has under another name.
    """

    def __init__(self, number: int, plan: Plan, rows: Indices, names: Mapping[str, str]) -> None:
        self.number = number
        self.plan = plan
        self.rows = rows
        self.names = names
        self._demand_of = {schedule: Demand.of(number, schedule) for schedule in plan.schedules}
        self._schedule_of = {demand: schedule for schedule, demand in self._demand_of.items()}
        self._measured_at: dict[Due, NDArray[np.bool_]] = {}

    @cached_property
    def row_of(self) -> dict[int, int]:
        """The row of the plan for each row of the table that the plan has."""
        return {row: own for own, row in enumerate(self.rows.tolist())}

    def demands(self, due: Due) -> Due:
        """The demands of the owner on the table when these schedules of its plan are due."""
        return frozenset(map(self._demand_of.__getitem__, due))

    def schedules(self, demands: Due) -> Due:
        """The schedules of the plan that are due when these demands on the table are."""
        own = self._schedule_of
        return frozenset(own[each] for each in demands if isinstance(each, Demand) and each in own)

    def measured_at(self, due: Due) -> NDArray[np.bool_]:
        """The rows of the plan that its rules measure when these schedules are due, bool [rows]."""
        if due not in self._measured_at:
            rows = np.array([row.due(due) for row in self.plan.rows], dtype=np.bool_)
            # A ratio divides the norm of an update by that of the parameter, which is measured with it.
            for update, parameter in self.plan.param_row_of.items():
                if update < len(rows) and rows[update]:
                    rows[parameter] = True
            self._measured_at[due] = rows
        return self._measured_at[due]

    @cached_property
    def own_names(self) -> frozenset[str]:
        """The names in the table of the statistics and accumulators of users that the plan has, and `METRICS` for metrics."""
        built_in = {each.name for each in BUILT_IN}
        own = {each.accumulator.name for each in self.plan.kept} - built_in
        users = [user for row in self.plan.rows_and_groups for user in row.users.values()]
        own |= {user.name for user in users} | {METRICS for user in users if user.is_metric}
        return frozenset(self.names.get(each, each) for each in own)


def join(plans: Sequence[Plan], turns: Sequence[Turn]) -> tuple[Plan, list[Part]]:
    """The plan of a table for several plans, and what each plan has in it.

    A row of the table stands for the rows of all plans with the same module or parameter, tensor and turn. Rows whose
    measurements would exclude one another are split: units along different dimensions, and comparisons of gradients with
    those of different earlier steps.

    Args:
        plans: in the order of their owners.
        turns: of each plan.
    """
    if len(plans) == 1:
        return _alone(plans[0])
    joining = _Joining()
    parts = [joining.add(number, plan, turn) for number, (plan, turn) in enumerate(zip(plans, turns, strict=True))]
    return joining.plan(), parts


def _alone(plan: Plan) -> tuple[Plan, list[Part]]:
    """The plan of a table with one owner: the same rows, with demands for schedules."""
    joining = _Joining()
    part = joining.add(0, plan, lambda row: 0)
    return joining.plan(), [part]


class _Joining:
    """The rows of a table while plans are joined."""

    def __init__(self) -> None:
        self._rows: dict[Key, Row] = {}
        self._registry = UserRegistry()
        self._rules: list[Matched] = []
        self._demands: dict[Demand, None] = {}
        self._drawn: set[Demand] = set()
        self._param_row_of: dict[int, int] = {}
        self._requests: dict[Requests, Requests] = {}

    def add(self, number: int, plan: Plan, turn: Turn) -> Part:
        """Add the rows of a plan."""
        names = self._names_of(plan)
        asked = _asked_of_rows(plan)
        users = _users_of_rows(plan)
        placed = [self._place(number, row, asked[row.index], users[row.index], turn(row), names) for row in plan.rows]
        self._rules += [
            replace(each, members=array("i", (placed[member].index for member in each.members)), groups=[])
            for each in plan.rules
        ]
        self._demands.update(dict.fromkeys(Demand.of(number, each) for each in plan.schedules))
        self._drawn.update(Demand.of(number, each) for each in plan.drawn_by_default)
        rows = len(plan.rows)
        self._param_row_of.update(
            {placed[update].index: placed[param].index for update, param in plan.param_row_of.items() if update < rows}
        )
        return Part(number, plan, np.array([row.index for row in placed], dtype=np.intp), names)

    def plan(self) -> Plan:
        """The plan of the table."""
        return Plan(
            [*self._rows.values()],
            self._rules,
            tuple(self._demands),
            param_row_of=self._param_row_of,
            accumulators=tuple(self._registry.accumulators.values()),
            drawn_by_default=frozenset(self._drawn),
        )

    def _place(
        self,
        number: int,
        row: Row,
        asked: Requests,
        users: Mapping[str, UserStatistic],
        turn: int,
        names: Mapping[str, str],
    ) -> Row:
        """Find or add the row of the table for a row of a plan, and address the requests of the plan to it."""
        target, split = id(row.target.value), 0
        while (kept := self._rows.get((target, row.tensor, turn, split))) is not None:
            if not _exclude(kept, row, asked):
                break
            split += 1
        if kept is None:
            kept = Row(len(self._rows), row.tensor, target=row.target)
            self._rows[target, row.tensor, turn, split] = kept
        requests = tuple((Demand.of(number, each), tuple(names.get(stat, stat) for stat in stats)) for each, stats in asked)
        kept.requests = self._requests.setdefault(both := (*kept.requests, *requests), both)
        if users:
            own = {names.get(name, name): replace(user, name=names.get(name, name)) for name, user in users.items()}
            kept.users = {**kept.users, **own}
        if row.units is not None:
            kept.units = row.units if kept.units is None else row.units.joined(kept.units)
        return kept

    def _names_of(self, plan: Plan) -> dict[str, str]:
        """The names in the table of the user's statistics and accumulators of a plan, where those in the plan are others."""
        names: dict[str, str] = {}
        for each in plan.accumulators:
            names.update(self._name_accumulator(each))
        users = {name: user for row in plan.rows_and_groups for name, user in row.users.items()}
        for name, user in users.items():
            known = self._registry.add_statistic(replace(user, name=name))
            if known.name != name:
                names.update({name: known.name, key_of(name): key_of(known.name)})
        return names

    def _name_accumulator(self, accumulator: Accumulator) -> dict[str, str]:
        known = self._registry.accumulators
        taken = {stat for each in known.values() if each != accumulator for stat in each.statistics} | set(
            self._registry.statistics
        )
        if known.get(accumulator.name, accumulator) == accumulator and taken.isdisjoint(accumulator.statistics):
            known[accumulator.name] = accumulator
            return {}
        # Two owners may have different accumulators of one name. Only the table needs another name for the second.
        number = next(i for i in range(2, len(known) + 3) if f"{accumulator.name}_{i}" not in known)
        renamed: Any = copy.copy(accumulator)
        renamed.name = f"{accumulator.name}_{number}"
        renamed.statistics = tuple(f"{stat}_{number}" for stat in accumulator.statistics)
        known[renamed.name] = renamed
        return {accumulator.name: renamed.name, **dict(zip(accumulator.statistics, renamed.statistics, strict=True))}


def _asked_of_rows(plan: Plan) -> list[Requests]:
    """By row: its requests, and those of the groups that merge it."""
    asked = [row.requests for row in plan.rows]
    for group in plan.groups:
        for member in group.members:
            asked[member] = (*asked[member], *group.requests)
    return asked


def _users_of_rows(plan: Plan) -> list[Mapping[str, UserStatistic]]:
    """By row: the user's statistics of it, and those of the groups that merge it."""
    users = [row.users for row in plan.rows]
    for group in plan.groups:
        for member in group.members:
            users[member] = {**users[member], **group.users}
    return users


def _exclude(kept: Row, row: Row, asked: Requests) -> bool:
    """Whether a row of a plan cannot share a row of the table, because one measurement cannot serve both."""
    if kept.tensor in WHOLE:
        return False
    if kept.units is not None and row.units is not None and kept.units[:2] != row.units[:2]:
        return True
    # Each owner compares a gradient with that of the step before at which it has measured the row, and owners differ in that.
    return _compares(kept.requests) and _compares(asked)


def _compares(requests: Requests) -> bool:
    return any(stat in PAIR_STATS for _, stats in requests for stat in stats)
