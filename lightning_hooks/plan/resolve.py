"""Resolve watch rules against a model: the rows, their groups and their schedules become a plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from torch import nn

from lightning_hooks.errors import RuleError
from lightning_hooks.plan.defaults import DEFAULT_WATCH, draws_by_default
from lightning_hooks.plan.groups import add_groups, index_groups
from lightning_hooks.plan.plan import Matched, Plan
from lightning_hooks.plan.rows import LOSS, Requests, Row
from lightning_hooks.plan.units import ask_for_units, units_schedule
from lightning_hooks.plan.user_registry import UserRegistry, accumulator_of
from lightning_hooks.rules import Watch
from lightning_hooks.rules.fields import StatSpec
from lightning_hooks.rules.patterns import Target, matched_by
from lightning_hooks.rules.schedule import EveryN, every_n
from lightning_hooks.rules.statistics import ONLY_OF, UNIT_STATS, is_known
from lightning_hooks.stats.statistics import DEFAULT_STATS
from lightning_hooks.stats.user_statistics import UserStatistic, user_statistic


def resolve(
    model: nn.Module,
    rules: Sequence[Watch] | None,
    schedule: EveryN,
    where: str = "",
    *,
    with_loss: bool = False,
    loss_alone: bool = False,
    draws_every: int | None = None,
    name: str = "watch",
) -> Plan:
    """Resolve watch rules against a model.

    Args:
        model: the root; names are those of its `named_modules()` and `named_parameters()`.
        rules: watch rules; None for the default rules.
        schedule: the schedule of rules without `every_n_steps`.
        where: the text before the names of rules in messages.
        with_loss: whether to add a row for the loss, if there is any other row.
        loss_alone: whether to add it also if there is no other row.
        draws_every: the interval in steps at which rows of rules without `stats` also keep a histogram, rounded up to a
            multiple of the interval of the rule; None for no such histograms. See `draws_by_default`.
        name: of the list of rules in messages.

    Raises:
        RuleError: a rule matches nothing, or is invalid for this model or together with the other rules.
    """
    # Rules that request the same tensor of the same target share a row.
    rows: dict[tuple[int, str], Row] = {}

    def row_of(target: Target[Any], tensor: str) -> Row:
        return rows.setdefault((id(target.value), tensor), Row(len(rows), tensor, target=target))

    # Rows with equal requests share one tuple, which saves memory with many rows.
    shared_requests: dict[Requests, Requests] = {}
    all_matched: list[Matched] = []
    schedules: dict[EveryN, None] = {}
    drawn: dict[EveryN, None] = {}
    if draws_every is not None and not draws_by_default(model):
        draws_every = None
    registry = UserRegistry()
    for here, rule, targets in matched_by(model, DEFAULT_WATCH if rules is None else rules, f"{where}{name}"):
        due = schedule if rule.every_n_steps is None else every_n(rule.every_n_steps, f"{here}.every_n_steps")
        schedules[due] = None
        units_due = units_schedule(rule, due)
        draws = None if draws_every is None or rule.stats is not None else due.spaced(draws_every)
        if draws is not None:
            drawn[draws] = None
        names, users = _statistics(rule, here, registry)
        matched = Matched(rule, here)
        for tensor in rule.watched:
            stats = _stats_of(names, tensor, default=rule.stats is None)
            tensor_rows = [row_of(target, tensor) for target in targets]
            matched.members.extend(row.index for row in tensor_rows)
            ungrouped = tensor_rows
            if rule.group_by is not None:
                ungrouped = add_groups(matched, tensor_rows, (due, stats), users, here)
            written = {row.index for row in ungrouped}
            of_units = tuple(stat for stat in stats if stat in UNIT_STATS)
            stats = tuple(stat for stat in stats if stat not in UNIT_STATS)
            if of_units:
                schedules[units_due] = None
            for row in tensor_rows:
                asked = (due, stats if row.index in written else ()), *([(units_due, of_units)] if of_units else ())
                requests = (*row.requests, *(each for each in asked if each[1] or not of_units))
                if draws is not None and row.index in written:
                    requests = (*requests, (draws, ("histogram",)))
                row.requests = shared_requests.setdefault(requests, requests)
                if of_units:
                    ask_for_units(row, rule, here)
                if users and row.index in written:
                    row.users = {**row.users, **users}
        all_matched.append(matched)
    in_groups = {i for matched in all_matched for group in matched.groups if "ratio" in group.stats for i in group.members}
    with_ratio = [row for row in rows.values() if "ratio" in row.stats or row.index in in_groups]
    # A ratio divides by the norm of the parameter, so add a row for the parameter. If no rule requests that row, it is measured
    # but not written.
    param_row_of = {row.index: row_of(row.target, "param").index for row in with_ratio}
    if with_loss and loss_alone and not rows:
        schedules[schedule] = None
    if with_loss and (rows or loss_alone):
        rows[id(model), LOSS] = Row(len(rows), LOSS, tuple((due, ()) for due in schedules), target=Target(LOSS, model, model))
    plan = Plan(
        [*rows.values()],
        all_matched,
        tuple(dict.fromkeys([*schedules, *drawn])),
        param_row_of=param_row_of,
        accumulators=tuple(registry.accumulators.values()),
        drawn_by_default=frozenset(drawn.keys() - schedules.keys()),
    )
    index_groups(plan)
    _refuse_common_tags(plan, f"{where}watch")
    return plan


def _refuse_common_tags(plan: Plan, where: str) -> None:
    """Raise if two statistics have the same tag, such as `norm` of `output_grad` and a user's `grad_norm` of `output`."""
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


def _statistics(rule: Watch, where: str, registry: UserRegistry) -> tuple[tuple[str, ...], dict[str, UserStatistic]]:
    """The names of a rule's statistics, and the user's own functions and metrics among them.

    Args:
        rule: a watch rule.
        where: the rule in messages.
        registry: the user's statistics and accumulators of the rules before; those of this rule are added.
    """
    of_units = UNIT_STATS if rule.units is not None else ()
    if rule.stats is None:
        return (*DEFAULT_STATS, *of_units), {}
    names: list[str] = []
    users: dict[str, UserStatistic] = {}
    # The constructor of the rule has normalised `stats` to a tuple.
    for position, stat in enumerate(cast(tuple[StatSpec, ...], rule.stats)):
        here = f"{where}.stats[{position}]"
        if is_known(stat):
            names.append(cast(str, stat))
            continue
        accumulator = accumulator_of(stat, here)
        if accumulator is not None:
            names.extend(registry.add_accumulator(accumulator, here))
            continue
        user = user_statistic(stat, here)
        if is_known(user.name) or user.name == "count":
            raise RuleError(
                f"{here}: a user's statistic cannot be called {user.name!r}, which is the name of a built-in statistic"
            )
        user = registry.add_statistic(user)
        users[user.name] = user
        names.append(user.name)
    if not any(name in UNIT_STATS for name in names):
        names.extend(of_units)
    return tuple(dict.fromkeys(names)), users


def _stats_of(names: tuple[str, ...], tensor: str, *, default: bool) -> tuple[str, ...]:
    """The statistics among `names` that a tensor has; with `default`, updates have a `ratio` too."""
    kept = tuple(name for name in names if ONLY_OF.get(name, tensor) == tensor)
    return (*kept, "ratio") if default and tensor == "update" else kept
