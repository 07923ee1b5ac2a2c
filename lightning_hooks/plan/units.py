"""What rules ask of units: of which rows, how, and at which steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from lightning_hooks.errors import RuleError
from lightning_hooks.plan.rows import Row
from lightning_hooks.rules import Watch
from lightning_hooks.rules.schedule import EveryN
from lightning_hooks.stats.units.spec import UnitSpec

_EVERY: Final = 10
"""Units are measured at most every so many steps, unless a rule has a schedule of its own: they take more arithmetic."""


def units_schedule(rule: Watch, schedule: EveryN) -> EveryN:
    """At which steps the units of a rule are measured: at some of those at which its other statistics are.

    Example:
        >>> units_schedule(Watch(modules="*", units="auto"), EveryN(every=4)).every
        12
    """
    if rule.every_n_steps is not None or schedule.steps is not None or schedule.every >= _EVERY:
        return schedule
    return replace(schedule, every=-(-_EVERY // schedule.every) * schedule.every)


def ask_for_units(row: Row, rule: Watch, where: str) -> None:
    """Note how the units of a row are measured.

    Raises:
        RuleError: two rules ask for it in different ways.
    """
    axis = None if rule.units in (None, "auto") else int(rule.units)
    asked = UnitSpec(axis, rule.heads, rule.unit_vectors)
    if row.units is None:
        row.units = asked
        return
    if row.units[:2] != asked[:2]:
        raise RuleError(
            f"{where}.units: another rule measures the units of {row.tensor} of {row.name} with units="
            f"{'auto' if row.units.axis is None else row.units.axis!r} and heads={row.units.heads}, this one with units="
            f"{'auto' if axis is None else axis!r} and heads={rule.heads}"
        )
    row.units = row.units._replace(vectors=row.units.vectors or asked.vectors)
