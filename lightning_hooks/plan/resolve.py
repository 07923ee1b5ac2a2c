"""Watch rules and a model become a plan: rows, groups of rows, and when they are due."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from torch import nn

from lightning_hooks.errors import RuleError
from lightning_hooks.plan.defaults import DEFAULT_WATCH, layers
from lightning_hooks.plan.groups import add_groups, index_groups
from lightning_hooks.plan.own import Own, accumulator_of
from lightning_hooks.plan.plan import Matched, Plan
from lightning_hooks.plan.rows import Requests, Row
from lightning_hooks.plan.units import ask_for_units, units_schedule
from lightning_hooks.rules import Watch
from lightning_hooks.rules.fields import StatSpec
from lightning_hooks.rules.patterns import Target, matched_by, named_modules
from lightning_hooks.rules.schedule import EveryN, every_n
from lightning_hooks.rules.statistics import ONLY_OF, UNIT_STATS, is_known
from lightning_hooks.stats.statistics import DEFAULT_STATS
from lightning_hooks.stats.user_statistics import UserStatistic, user_statistic


def resolve(model: nn.Module, rules: Sequence[Watch] | None, schedule: EveryN, where: str = "") -> Plan:
    """Resolve watch rules against a model.

    Args:
        model: the root; names are those of its `named_modules()` and `named_parameters()`.
        rules: watch rules; None for the default ones.
        schedule: of the rules that have none of their own.
        where: what goes before the names of rules in messages.

    Raises:
        RuleError: a rule that is invalid here, or matches nothing.
    """
    modules: list[Target[nn.Module]] | None = None
    called = f"{where}watch"
    if rules is None:
        rules, modules = DEFAULT_WATCH, layers(named_modules(model))
        called = f"{where}the default watch"
    rows: dict[tuple[int, str], Row] = {}  # one for each target and tensor, however many rules name it

    def row_of(target: Target[Any], tensor: str) -> Row:
        return rows.setdefault((id(target.value), tensor), Row(len(rows), tensor, target=target))

    known: dict[Requests, Requests] = {}  # one object for equal requests
    matched: list[Matched] = []
    schedules: dict[EveryN, None] = {}
    own = Own()
    for here, rule, targets in matched_by(model, rules, called, modules):
        due = schedule if rule.every_n_steps is None else every_n(rule.every_n_steps, f"{here}.every_n_steps")
        schedules[due] = None
        units_due = units_schedule(rule, due)
        names, users = _statistics(rule, here, own)
        found = Matched(rule, here)
        for tensor in rule.watched:
            stats = _stats_of(names, tensor, default=rule.stats is None)
            fresh = [row_of(target, tensor) for target in targets]
            found.members.extend(row.index for row in fresh)
            alone = add_groups(found, fresh, (due, stats), users, here) if rule.group_by is not None else fresh
            written = {row.index for row in alone}
            of_units = tuple(stat for stat in stats if stat in UNIT_STATS)
            stats = tuple(stat for stat in stats if stat not in UNIT_STATS)
            if of_units:
                schedules[units_due] = None
            for row in fresh:
                asked = (due, stats if row.index in written else ()), *([(units_due, of_units)] if of_units else ())
                requests = (*row.requests, *(each for each in asked if each[1] or not of_units))
                row.requests = known.setdefault(requests, requests)
                if of_units:
                    ask_for_units(row, rule, here)
                if users and row.index in written:
                    row.users = {**row.users, **users}
        matched.append(found)
    in_groups = {i for found in matched for group in found.groups if "ratio" in group.stats for i in group.members}
    with_ratio = [row for row in rows.values() if "ratio" in row.stats or row.index in in_groups]
    # Parameters that ratios need are measured, but written only where a rule asks for them.
    param_row_of = {row.index: row_of(row.target, "param").index for row in with_ratio}
    accumulators = tuple(own.accumulators.values())
    plan = Plan([*rows.values()], matched, tuple(schedules), param_row_of=param_row_of, accumulators=accumulators)
    index_groups(plan)
    _refuse_common_tags(plan, f"{where}watch")
    return plan


def _refuse_common_tags(plan: Plan, where: str) -> None:
    """Refuse two statistics with one tag, as `norm` of `output_grad` and a user's `grad_norm` of `output`."""
    names: dict[tuple[str, str], set[str]] = {}
    for each in plan.rows_and_groups:
        for stat in each.stats:
            names.setdefault((each.tensor, stat), set()).add(each.name)
    charts: dict[str, tuple[str, str]] = {}
    for tensor, stat in names:
        other = charts.setdefault(f"{tensor}_{stat}", (tensor, stat))
        common = names[tensor, stat] & names[other] if other != (tensor, stat) else None
        if common:
            raise RuleError(
                f"{where}: '{tensor}_{stat}/{min(common)}' would be written twice: it is {other[1]!r} of {other[0]!r} and "
                f"{stat!r} of {tensor!r}; watch one of them, or set the __name__ of your own statistic to another"
            )


def _statistics(rule: Watch, where: str, own: Own) -> tuple[tuple[str, ...], dict[str, UserStatistic]]:
    """The names of a rule's statistics, and the user's own functions and metrics among them.

    Args:
        rule: whose statistics.
        where: the rule in messages.
        own: what users wrote, of all rules so far.
    """
    of_units = UNIT_STATS if rule.units is not None else ()
    if rule.stats is None:
        return (*DEFAULT_STATS, *of_units), {}
    names: list[str] = []
    users: dict[str, UserStatistic] = {}
    for position, stat in enumerate(cast(tuple[StatSpec, ...], rule.stats)):  # as the rule has made it
        here = f"{where}.stats[{position}]"
        if is_known(stat):
            names.append(cast(str, stat))
            continue
        accumulator = accumulator_of(stat, here)
        if accumulator is not None:
            names.extend(own.add_accumulator(accumulator, here))
            continue
        user = user_statistic(stat, here)
        if is_known(user.name) or user.name == "count":
            raise RuleError(
                f"{here}: a user's statistic cannot be called {user.name!r}, which is the name of a built-in statistic"
            )
        user = own.add_statistic(user)
        users[user.name] = user
        names.append(user.name)
    if not any(name in UNIT_STATS for name in names):
        names.extend(of_units)
    return tuple(dict.fromkeys(names)), users


def _stats_of(names: tuple[str, ...], tensor: str, *, default: bool) -> tuple[str, ...]:
    kept = tuple(name for name in names if ONLY_OF.get(name, tensor) == tensor)
    return (*kept, "ratio") if default and tensor == "update" else kept
