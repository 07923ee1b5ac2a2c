"""Rows that a rule merges: by the blocks of the module tree, or by patterns."""

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
"""The block that holds every name."""


def block_of(name: str, depth: int) -> str:
    """The block of the module tree that holds a name.

    Example:
        >>> block_of("encoder.layers.0.attn.weight", 3), block_of("encoder.bias", 3), block_of("x.y", 0)
        ('encoder.layers.0', 'encoder.bias', 'all')
    """
    return ".".join(name.split(".")[:depth]) if depth else EVERYTHING


def add_groups(
    found: Matched,
    rows: Sequence[Row],
    request: tuple[EveryN, tuple[str, ...]],
    users: Mapping[str, UserStatistic],
    where: str,
) -> list[Row]:
    """Sort the rows of one tensor into groups, which are added to `found`; returns the rows in no group.

    Raises:
        RuleError: a pattern that matches none of the rows, or a metric, which does not merge.
    """
    metrics = [name for name, user in users.items() if user.is_metric]
    if metrics:
        raise RuleError(f"{where}.group_by: the metric {metrics[0]!r} of different rows cannot be merged; use a function")
    members, alone = _sorted(found, rows, where)
    for name, kept in members.items():
        indices = tuple(row.index for row in kept)
        found.groups.append(Row(-1, kept[0].tensor, (request,), dict(users), group=name, members=indices))
    return alone


def index_groups(plan: Plan) -> None:
    """Give the groups the indices that follow those of the rows; those with a ratio a group of parameters beside them.

    Raises:
        RuleError: two groups, or a group and a row, would have one tag, or one count although their elements are others.
    """
    if not any(found.groups for found in plan.rules):
        return
    names = {(row.tensor, stat, row.name): "a row" for row in plan.rows for stat in row.stats}
    counted = {(row.tensor, row.name): {row.index} for row in plan.rows if row.stats}
    for position, found in enumerate(plan.rules):
        for group in found.groups:
            for stat in group.stats:
                taken = names.setdefault((group.tensor, stat, group.name), f"a group of rule {position}")
                if taken != f"a group of rule {position}":
                    raise RuleError(
                        f"{found.where}.group_by: '{group.tensor}_{stat}/{group.name}' would be written twice: it is "
                        f"{taken} too; give the group another name with a mapping of names to patterns"
                    )
            if counted.setdefault((group.tensor, group.name), {*group.members}) != {*group.members}:
                raise RuleError(
                    f"{found.where}.group_by: {group.tensor!r} has another row or group {group.name!r}, of other elements, and "
                    "their counts would be written under one name; give the group another name with a mapping of names to "
                    "patterns"
                )
            group.index = len(plan.rows) + len(plan.groups)
            plan.groups.append(group)
            if "ratio" in group.stats:
                members = tuple(plan.param_row_of[i] for i in group.members)
                below = Row(group.index + 1, "param", group=group.name, members=members)
                plan.groups.append(below)
                plan.param_row_of[group.index] = below.index


def _sorted(found: Matched, rows: Sequence[Row], where: str) -> tuple[dict[str, list[Row]], list[Row]]:
    rule = found.rule
    members: dict[str, list[Row]] = {}
    if isinstance(rule.group_by, int):
        for row in rows:
            members.setdefault(block_of(row.name, rule.group_by), []).append(row)
        return members, []
    left = list(rows)
    for name, pattern in cast(tuple[tuple[str, str], ...], rule.group_by):  # as the rule has made it
        chosen = select([row.target for row in rows], pattern, strict=rule.strict, where=f"{where}.group_by")
        ids = {id(target.value) for target in chosen}
        taken = [row for row in left if id(row.target.value) in ids]
        left = [row for row in left if id(row.target.value) not in ids]
        if taken:
            members.setdefault(name, []).extend(taken)
    return members, left
