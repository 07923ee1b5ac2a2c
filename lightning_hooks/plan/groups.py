"""Groups: `group_by` of a rule merges rows by the blocks of the module tree, or by patterns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from lightning_hooks.errors import RuleError
from lightning_hooks.plan.plan import Matched, Plan
from lightning_hooks.plan.rows import Row
from lightning_hooks.rules.patterns import select
from lightning_hooks.rules.schedule import EveryN
from lightning_hooks.stats.user_statistics import UserStatistic

EVERYTHING = "all"
"""The name of the block at depth 0, which holds every name."""


def block_of(name: str, depth: int) -> str:
    """The block of the module tree that holds a name: the first `depth` parts of the name.

    Example:
        >>> block_of("encoder.layers.0.attn.weight", 3), block_of("encoder.bias", 3), block_of("x.y", 0)
        ('encoder.layers.0', 'encoder.bias', 'all')
    """
    return ".".join(name.split(".")[:depth]) if depth else EVERYTHING


def add_groups(
    matched: Matched,
    rows: Sequence[Row],
    request: tuple[EveryN, tuple[str, ...]],
    users: Mapping[str, UserStatistic],
    where: str,
) -> list[Row]:
    """Sort the rows of one tensor into groups.

    Args:
        matched: the rule with its rows; the groups are added to it.
        rows: the rows of the tensor.
        request: the statistics of each group, with their schedule.
        users: the user's own statistics among them, by name.
        where: the rule in messages.

    Returns:
        The rows that are in no group.

    Raises:
        RuleError: a pattern matches none of the rows, or a statistic is a metric, whose states cannot be merged over rows.
    """
    metrics = [name for name, user in users.items() if user.is_metric]
    if metrics:
        raise RuleError(f"{where}.group_by: the metric {metrics[0]!r} of different rows cannot be merged; use a function")
    members, ungrouped = _sort_into_groups(matched, rows, where)
    for name, group in members.items():
        indices = tuple(row.index for row in group)
        matched.groups.append(Row(-1, group[0].tensor, (request,), dict(users), group=name, members=indices))
    return ungrouped


def index_groups(plan: Plan) -> None:
    """Give each group an index after those of the rows, and each group with a ratio a second group with its parameters.

    Raises:
        RuleError: two groups, or a group and a row, would share a tag; or they would share a count but not their elements.
    """
    if not any(matched.groups for matched in plan.rules):
        return
    names = {(row.tensor, stat, row.name): "a row" for row in plan.rows for stat in row.stats}
    counted = {(row.tensor, row.name): {row.index} for row in plan.rows if row.stats}
    for position, matched in enumerate(plan.rules):
        for group in matched.groups:
            for stat in group.stats:
                taken = names.setdefault((group.tensor, stat, group.name), f"a group of rule {position}")
                if taken != f"a group of rule {position}":
                    raise RuleError(
                        f"{matched.where}.group_by: '{group.tensor}_{stat}/{group.name}' would be written twice: it is "
                        f"{taken} too; give the group another name with a mapping of names to patterns"
                    )
            if counted.setdefault((group.tensor, group.name), {*group.members}) != {*group.members}:
                raise RuleError(
                    f"{matched.where}.group_by: {group.tensor!r} has another row or group {group.name!r}, of other elements, "
                    "and their counts would be written under one name; give the group another name with a mapping of names to "
                    "patterns"
                )
            group.index = len(plan.rows) + len(plan.groups)
            plan.groups.append(group)
            if "ratio" in group.stats:
                members = tuple(plan.param_row_of[i] for i in group.members)
                params = Row(group.index + 1, "param", group=group.name, members=members)
                plan.groups.append(params)
                plan.param_row_of[group.index] = params.index


def _sort_into_groups(matched: Matched, rows: Sequence[Row], where: str) -> tuple[dict[str, list[Row]], list[Row]]:
    """The rows of each group by the name of the group, and the rows in no group."""
    rule = matched.rule
    members: dict[str, list[Row]] = {}
    if isinstance(rule.group_by, int):
        for row in rows:
            members.setdefault(block_of(row.name, rule.group_by), []).append(row)
        return members, []
    left = list(rows)
    # The constructor of the rule has normalised `group_by` to pairs of a name and a pattern.
    for name, pattern in cast(tuple[tuple[str, str], ...], rule.group_by):
        chosen = select([row.target for row in rows], pattern, strict=rule.strict, where=f"{where}.group_by")
        ids = {id(target.value) for target in chosen}
        taken = [row for row in left if id(row.target.value) in ids]
        left = [row for row in left if id(row.target.value) not in ids]
        if taken:
            members.setdefault(name, []).extend(taken)
    return members, left
