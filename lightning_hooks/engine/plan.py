"""Watch rules and a model become rows: one per tap, with what is computed of it and when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from lightning_hooks.engine.compiled import refuse_compiled
from lightning_hooks.errors import RuleError, did_you_mean
from lightning_hooks.rules import PARAM_TENSORS, Watch, parse_tensor
from lightning_hooks.schedule import EveryN, every_n
from lightning_hooks.select import Target, named_modules, named_parameters, select
from lightning_hooks.stats.custom import UserStatistic, user_statistic
from lightning_hooks.stats.scalars import DEFAULT_STATS, NAMES, needs_histogram, quantile_of

DEFAULT_WATCH = (
    Watch(modules="*", leaves=True, tensors=("output", "output_grad"), strict=False),
    Watch(params="*", tensors=("param", "grad", "update"), strict=False),
)


@dataclass
class Row:
    """One tap: a target and one of its tensors.

    Args:
        index: its place in the table.
        target: the module or the parameter.
        tensor: as the rule wrote it: `grad`, `output[0]`.
        requests: the statistics that rules ask for, each with its schedule; none for a row that only serves another.
        users: the user's own statistics among them, by name.
    """

    index: int
    target: Target[Any]
    tensor: str
    requests: list[tuple[EveryN, tuple[str, ...]]] = field(default_factory=list)
    users: dict[str, UserStatistic] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The dotted name of the target."""
        return self.target.name

    @property
    def kind(self) -> str:
        """The tensor without the path to a part of it."""
        return parse_tensor(self.tensor)[0]

    @property
    def path(self) -> str:
        """The path to the part that is seen; empty for all of it."""
        return parse_tensor(self.tensor)[1]

    @property
    def stats(self) -> tuple[str, ...]:
        """Every statistic that any rule asks of it, in order, once."""
        return tuple(dict.fromkeys(stat for _, stats in self.requests for stat in stats))

    def due(self, schedules: frozenset[EveryN]) -> bool:
        """Whether any rule asks for it when these schedules are due."""
        return any(schedule in schedules for schedule, _ in self.requests)


@dataclass
class Plan:
    """Every row of a monitor."""

    rows: list[Row]
    rules: list[tuple[Watch, list[Row]]]
    schedules: tuple[EveryN, ...]
    param_row_of: dict[int, int] = field(default_factory=dict)

    @property
    def charts(self) -> list[tuple[str, str]]:
        """Tensor and statistic of every chart, each once."""
        return list(dict.fromkeys((row.tensor, stat) for row in self.rows for stat in row.stats if stat != "histogram"))

    @property
    def histogram_rows(self) -> tuple[int, ...]:
        """Rows of which a histogram or a quantile is asked."""
        return tuple(row.index for row in self.rows if any(needs_histogram(stat) for stat in row.stats))

    @property
    def replicated_rows(self) -> tuple[int, ...]:
        """Rows of parameters, which data-parallel ranks have alike."""
        return tuple(row.index for row in self.rows if row.kind in PARAM_TENSORS)

    @property
    def users(self) -> list[tuple[int, UserStatistic]]:
        """The user's own statistics with their rows."""
        return [(row.index, user) for row in self.rows for user in row.users.values()]


def resolve(model: nn.Module, rules: Sequence[Watch] | None, schedule: EveryN, where: str = "watch") -> Plan:
    """The rows that rules mean in a model.

    Args:
        model: the root; names are those of its `named_modules()` and `named_parameters()`.
        rules: watch rules; None for the default ones.
        schedule: of the rules that have none of their own.
        where: the option that holds the rules, for messages.

    Raises:
        RuleError: a rule that cannot be meant here, or matches nothing.
    """
    if rules is None:
        rules = DEFAULT_WATCH
    rows: dict[tuple[int, str], Row] = {}
    modules, parameters = named_modules(model), named_parameters(model)
    by_rule: list[tuple[Watch, list[Row]]] = []
    schedules: dict[EveryN, None] = {}
    for position, rule in enumerate(rules):
        here = f"{where}[{position}]"
        due = schedule if rule.every_n_steps is None else every_n(rule.every_n_steps, f"{here}.every_n_steps")
        schedules[due] = None
        targets: list[Target[Any]]
        if rule.modules is not None:
            targets = list(
                select(
                    modules,
                    rule.modules,
                    types=rule.types,
                    leaves=rule.leaves,
                    strict=rule.strict,
                    where=f"{here}.modules",
                )
            )
            refuse_compiled(model, targets, f"{here}.modules")
            tensors: Sequence[str] = rule.tensors or ("output", "output_grad")
        else:
            assert rule.params is not None
            targets = list(select(parameters, rule.params, types=rule.types, strict=rule.strict, where=f"{here}.params"))
            tensors = rule.tensors or ("param", "grad", "update")
        names, users = _statistics(rule, tensors, here)
        matched = []
        for tensor in tensors:
            stats = _stats_of(names, tensor, default=rule.stats is None)
            for target in targets:
                row = rows.setdefault((id(target.value), tensor), Row(len(rows), target, tensor))
                row.requests.append((due, stats))
                row.users.update({name: user for name, user in users.items()})
                matched.append(row)
        by_rule.append((rule, matched))
    plan = Plan(list(rows.values()), by_rule, tuple(schedules))
    _add_param_rows(plan, rows)
    return plan


def _add_param_rows(plan: Plan, rows: dict[tuple[int, str], Row]) -> None:
    """A ratio needs the parameter's own norm: a row that is measured, and written only where a rule asks for it."""
    for row in list(plan.rows):
        if row.tensor == "update" and "ratio" in row.stats:
            key = (id(row.target.value), "param")
            if key not in rows:
                rows[key] = Row(len(rows), row.target, "param")
                plan.rows.append(rows[key])
            plan.param_row_of[row.index] = rows[key].index


def _statistics(rule: Watch, tensors: Sequence[str], where: str) -> tuple[tuple[str, ...], dict[str, UserStatistic]]:
    if rule.stats is None:
        return DEFAULT_STATS, {}
    names: list[str] = []
    users: dict[str, UserStatistic] = {}
    for position, stat in enumerate(rule.stats):
        here = f"{where}.stats[{position}]"
        if isinstance(stat, str) and (stat in NAMES or quantile_of(stat) is not None):
            if stat == "ratio" and "update" not in tensors:
                raise RuleError(f"{here}: 'ratio' is a statistic of 'update'; the rule watches {', '.join(tensors)}")
            names.append(stat)
            continue
        if isinstance(stat, str) and "." not in stat:
            raise RuleError(f"{here}: unknown statistic {stat!r}{did_you_mean(stat, NAMES)}; known are {', '.join(NAMES)}")
        user = user_statistic(stat, here)
        if user.name in NAMES:
            raise RuleError(f"{here}: a user's statistic cannot be called {user.name!r}, which is one of ours")
        users[user.name] = user
        names.append(user.name)
    return tuple(dict.fromkeys(names)), users


def _stats_of(names: tuple[str, ...], tensor: str, *, default: bool) -> tuple[str, ...]:
    if tensor == "update":
        return (*names, "ratio") if default else names
    return tuple(name for name in names if name != "ratio")
