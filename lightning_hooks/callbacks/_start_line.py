"""The line that a monitor logs when a fit begins, and what it says in TensorBoard: what is watched, and how to see it."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from lightning_hooks.callbacks._logger_kinds import kinds_of
from lightning_hooks.errors import counted, shown_path
from lightning_hooks.plan.plan import Plan
from lightning_hooks.plan.rows import WHOLE
from lightning_hooks.rules.schedule import EveryN
from lightning_hooks.tensorboard.own_board import OwnBoard


def start_line(monitor: str, plan: Plan, loggers: Sequence[Any]) -> str:
    """The line of a monitor, of at most 100 characters beside the path.

    Args:
        monitor: the name of its class.
        plan: its rows and schedules.
        loggers: those that it writes to.
    """
    command = page_command(loggers)
    line = f"{monitor} watches {watched_text(plan)}"
    return line if command is None else f"{line}. To see it: {command}"


def watched_text(plan: Plan) -> str:
    """What a plan watches and how often, in words."""
    targets = {id(row.target.value): row.target.value for row in plan.rows if row.tensor not in WHOLE}
    modules = sum(isinstance(value, nn.Module) for value in targets.values())
    counts = {"module": modules, "parameter": len(targets) - modules}
    watched = " and ".join(counted(number, noun) for noun, number in counts.items() if number) or "the loss"
    return f"{watched}{_when(plan.named_schedules)}"


def page_command(loggers: Sequence[Any]) -> str | None:
    """The command that shows the page of a run; None if no TensorBoard is among its loggers."""
    folder = _folder(loggers)
    return None if folder is None else f"lightning-hooks view {shlex.quote(shown_path(folder))}"


def page_lines(loggers: Sequence[Any]) -> list[str]:
    """The end of a text in TensorBoard: the command that shows all of it, as Markdown; empty without a TensorBoard."""
    command = page_command(loggers)
    return [] if command is None else ["", f"All of it, with the values of every row: `{command}`, or the tab Hooks."]


def _when(schedules: Collection[EveryN]) -> str:
    """How often it measures, in words; empty with several schedules."""
    if len(schedules) != 1:
        return ""
    (schedule,) = schedules
    if schedule != EveryN(schedule.every):
        return " at some steps"
    return " at every step" if schedule.every == 1 else f" every {schedule.every} steps"


def _folder(loggers: Sequence[Any]) -> Path | None:
    """The log directory of the first TensorBoard; None if there is none. Nothing is opened or created."""
    for logger in loggers:
        if isinstance(logger, OwnBoard):
            return Path(logger.logdir)
        if "TensorBoardLogger" in kinds_of(logger):
            return Path(logger.log_dir)
    return None
