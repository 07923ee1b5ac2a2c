"""Requests for statistics of units: how the units of a row are measured, and at which steps."""

from __future__ import annotations

from typing import Final

from lightning_hooks.errors import RuleError
from lightning_hooks.plan.rows import Row
from lightning_hooks.rules import Watch
from lightning_hooks.rules.schedule import EveryN
from lightning_hooks.rules.units import Units
from lightning_hooks.stats.units.spec import UnitSpec

_MIN_INTERVAL: Final = 10
"""The smallest interval at which units are measured if the rule has no schedule: units take more arithmetic."""


def units_schedule(rule: Watch, schedule: EveryN) -> EveryN:
    """The schedule of the units of a rule: without a schedule of its own, a multiple of the interval of the other statistics.

    Example:
        >>> units_schedule(Watch(modules="*", units="auto"), EveryN(every=4)).every
        12
    """
    return schedule if rule.every_n_steps is not None else schedule.at_least(_MIN_INTERVAL)


def ask_for_units(row: Row, rule: Watch, where: str) -> None:
    """Set how the units of a row are measured.

    Raises:
        RuleError: another rule requests the units of this row with a different dimension or number of heads.
    """
    units = rule.units if isinstance(rule.units, Units) else Units()
    requested = UnitSpec(units.axis, units.heads, units.vectors, rule.is_written)
    if row.units is None:
        row.units = requested
        return
    if row.units[:2] != requested[:2]:
        raise RuleError(
            f"{where}.units: another rule measures the units of {row.tensor} of {row.name} with axis={row.units.axis} and "
            f"heads={row.units.heads}, this one with axis={units.axis} and heads={units.heads}"
        )
    row.units = row.units.joined(requested)
