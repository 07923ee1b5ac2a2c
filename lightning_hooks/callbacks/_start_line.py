"""The line that a monitor logs when a fit begins: what it watches, what shows its cost, and how to see it."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence
from typing import Any

from torch import nn

from lightning_hooks.errors import counted
from lightning_hooks.plan.plan import Plan
from lightning_hooks.plan.rows import WHOLE, requested
from lightning_hooks.rules.schedule import EveryN
from lightning_hooks.tensorboard.own_board import OwnBoard


def start_line(monitor: str, plan: Plan, prefix: str, loggers: Sequence[Any]) -> str:
    """The line of a monitor.

    Args:
        monitor: the name of its class.
        plan: its rows and schedules.
        prefix: the prefix of its tags.
        loggers: those that it writes to.
    """
    targets = {id(row.target.value): row.target.value for row in plan.rows if row.tensor not in WHOLE}
    modules = sum(isinstance(value, nn.Module) for value in targets.values())
    stats = {stat for row in plan.rows_and_groups for stat in requested(row.requests, plan.named_schedules)}
    counts = {"module": modules, "parameter": len(targets) - modules}
    watched = " and ".join(counted(number, noun) for noun, number in counts.items() if number) or "the loss"
    how = f" with {counted(len(stats), 'statistic')}" if stats else ""
    line = f"{monitor} watches {watched}{how} {_when(plan.named_schedules)}"
    if plan.drawn_by_default:
        line += f", and draws histograms {_when(plan.drawn_by_default)}"
    if not loggers:
        return line
    folder = _folder(loggers)
    seen = "" if folder is None else f" To see it: lightning-hooks view {shlex.quote(folder)}"
    return f"{line}; {prefix}run/overhead is its share of the time.{seen}"


def _when(schedules: Collection[EveryN]) -> str:
    if len(schedules) != 1:
        return "on several schedules"
    (schedule,) = schedules
    if schedule != EveryN(schedule.every):
        return "at some steps"
    return "at every step" if schedule.every == 1 else f"every {schedule.every} steps"


def _folder(loggers: Sequence[Any]) -> str | None:
    """The log directory of the first TensorBoard; None if there is none. Nothing is opened or created."""
    for logger in loggers:
        if isinstance(logger, OwnBoard):
            return str(logger.logdir)
        if any(kind.__name__ == "TensorBoardLogger" for kind in type(logger).__mro__):
            return str(logger.log_dir)
    return None
