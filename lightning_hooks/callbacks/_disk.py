"""The disk budget of a run, which its monitors share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from lightning_hooks.errors import RuleError
from lightning_hooks.records.disk_budget import AUTO, DISK, DiskBudget, bytes_of, shown_size


def budget_of(callbacks: Iterable[Any], say: Callable[[str], None]) -> DiskBudget:
    """The budget of a run.

    Args:
        callbacks: those of the run; monitors have the attribute `disk`.
        say: is given one sentence when windows begin.

    Raises:
        RuleError: two of them give different values.
    """
    return DiskBudget(limit_of(callbacks), say)


def limit_of(callbacks: Iterable[Any]) -> int | None:
    """The budget in bytes that the callbacks of a run give; None for no limit.

    Raises:
        RuleError: two of them give different values.
    """
    given = [(type(each).__name__, bytes_of(each.disk)) for each in callbacks if getattr(each, "disk", AUTO) != AUTO]
    for name, limit in given[1:]:
        if limit != given[0][1]:
            first, second = (None if each is None else shown_size(each) for each in (given[0][1], limit))
            raise RuleError(
                f"disk: {given[0][0]} has {first!r} and {name} has {second!r}, but the budget belongs to the run; give it to "
                "one of them, or the same to both"
            )
    return given[0][1] if given else DISK
