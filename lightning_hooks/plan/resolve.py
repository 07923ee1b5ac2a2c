"""Resolve watch rules against a model: the rows, their groups and their schedules become a plan."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

from torch import nn

from lightning_hooks.errors import RuleError
from lightning_hooks.plan.defaults import DEFAULT_WATCH, draws_by_default
from lightning_hooks.plan.groups import add_groups, index_groups
from lightning_hooks.plan.plan import Matched, Plan
from lightning_hooks.plan.rows import BATCH, EVERY_STEP, GRADIENT, LOSS, Requests, Row
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
    every_step: bool = False,
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
        every_step: whether to measure the loss, the whole gradient and the batch at every step, whatever the schedule.
        draws_every: the interval in steps at which rows of rules without `stats` also keep a histogram, rounded up to a
            multiple of the interval of the rule; None for no such histograms. See `draws_by_default`.
        name: of the list of rules in messages.

    Raises:
        RuleError: a rule matches nothing, or is invalid for this model or together with the other rules.
    """
    found = _Found(schedule, None if draws_every is None or not draws_by_default(model) else draws_every)
    for here, rule, targets in matched_by(model, DEFAULT_WATCH if rules is None else rules, f"{where}{name}"):
        found.add_rule(rule, here, targets)
    param_row_of = found.add_params_of_ratios()
    if with_loss and (found.rows or loss_alone):
        found.add_loss(model, every_step=every_step and schedule != EVERY_STEP)
    plan = Plan(
        [*found.rows.values()],
        found.matched,
        tuple(dict.fromkeys([*found.schedules, *found.drawn])),
        param_row_of=param_row_of,
        accumulators=tuple(found.registry.accumulators.values()),
        drawn_by_default=frozenset(found.drawn.keys() - found.schedules.keys()),
    )
    index_groups(plan)
    _refuse_common_tags(plan, f"{where}watch")
    return plan


class _Found:
    """What rules request: rows, in the order in which they were first requested, and schedules.

    Args:
        schedule: of rules without `every_n_steps`.
        draws_every: as for `resolve`; None for no histograms by default.
    """

    def __init__(self, schedule: EveryN, draws_every: int | None) -> None:
        self.rows: dict[tuple[int, str], Row] = {}
        self.matched: list[Matched] = []
        self.registry = UserRegistry()
        # Dictionaries keep the order in which schedules were first requested.
        self.schedules: dict[EveryN, None] = {}
        self.drawn: dict[EveryN, None] = {}
        self._schedule, self._draws_every = schedule, draws_every
        self._shared: dict[Requests, Requests] = {}

    def row_of(self, target: Target[Any], tensor: str) -> Row:
        """The row of a tensor. Rules that request the same tensor of the same target share it."""
        return self.rows.setdefault((id(target.value), tensor), Row(len(self.rows), tensor, target=target))

    def add_rule(self, rule: Watch, here: str, targets: Sequence[Target[Any]]) -> None:
        """Add the rows of a rule, with what it requests of them and when.

        Args:
            rule: a watch rule.
            here: the rule in messages.
            targets: the modules or parameters that it matches.
        """
        due = self._schedule if rule.every_n_steps is None else every_n(rule.every_n_steps, f"{here}.every_n_steps")
        self.schedules[due] = None
        draws = None if self._draws_every is None or rule.stats is not None else due.spaced(self._draws_every)
        if draws is not None:
            self.drawn[draws] = None
        names, users = _statistics(rule, here, self.registry)
        matched = Matched(rule, here)
        for tensor in rule.watched:
            stats = _stats_of(names, tensor, default=rule.stats is None)
            rows = [self.row_of(target, tensor) for target in targets]
            matched.members.extend(row.index for row in rows)
            written = rows if rule.group_by is None else add_groups(matched, rows, (due, stats), users, here)
            self._request(rule, here, rows, {row.index for row in written}, (due, stats), draws, users)
        self.matched.append(matched)

    def _request(
        self,
        rule: Watch,
        here: str,
        rows: Sequence[Row],
        written: Collection[int],
        request: tuple[EveryN, tuple[str, ...]],
        draws: EveryN | None,
        users: Mapping[str, UserStatistic],
    ) -> None:
        """Add to rows what a rule requests of one tensor.

        Args:
            rule: a watch rule.
            here: the rule in messages.
            rows: of the tensor.
            written: the indices of those that are written; the others are members of groups, and are measured for these.
            request: the schedule of the rule, and its statistics of the tensor.
            draws: when the rows also keep a histogram; None for never.
            users: the user's own functions and metrics among the statistics.
        """
        due, stats = request
        units_due = units_schedule(rule, due)
        of_units = tuple(stat for stat in stats if stat in UNIT_STATS)
        of_rows = tuple(stat for stat in stats if stat not in UNIT_STATS)
        if of_units:
            self.schedules[units_due] = None
        for row in rows:
            is_written = row.index in written
            asked = [(due, of_rows if is_written else ())]
            if of_units:
                asked = [each for each in (*asked, (units_due, of_units)) if each[1]]
                ask_for_units(row, rule, here)
            if draws is not None and is_written:
                asked.append((draws, ("histogram",)))
            requests = (*row.requests, *asked)
            # Rows with equal requests share one tuple, which saves memory with many rows.
            row.requests = self._shared.setdefault(requests, requests)
            if users and is_written:
                row.users = {**row.users, **users}

    def add_params_of_ratios(self) -> dict[int, int]:
        """Add the parameters by whose norms ratios divide. Returns their rows, by the row of the ratio.

        A row that no rule requests is measured, but not written.
        """
        in_groups = {i for each in self.matched for group in each.groups if "ratio" in group.stats for i in group.members}
        with_ratio = [row for row in self.rows.values() if "ratio" in row.stats or row.index in in_groups]
        return {row.index: self.row_of(row.target, "param").index for row in with_ratio}

    def add_loss(self, model: nn.Module, *, every_step: bool) -> None:
        """Add a row of the loss, which is due whenever another row is; without any other, by the schedule of the rules.

        With `every_step` the loss is due at every step, and so are a row of the whole gradient and one of the batch.
        """
        if not self.rows:
            self.schedules[self._schedule] = None
        if every_step:
            self.schedules[EVERY_STEP] = None
        requests = tuple((due, ()) for due in self.schedules)
        for tensor in (LOSS, GRADIENT, BATCH) if every_step else (LOSS,):
            self.rows[id(model), tensor] = Row(len(self.rows), tensor, requests, target=Target(tensor, model, model))


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
