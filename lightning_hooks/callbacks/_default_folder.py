"""Where event files of this package go if nobody says it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lightning_hooks.callbacks._logger_kinds import kinds_of

if TYPE_CHECKING:
    from lightning_hooks.callbacks._lightning import Trainer


LOGS: Final = "lightning_hooks_logs"
"""The default folder of event files of this package."""


def default_logdir(trainer: Trainer) -> Path | None:
    """Where event files of this package go if the Trainer has loggers, but no TensorBoard; None without loggers.

    It is the folder in which a logger keeps the files of this run, or else `lightning_hooks_logs` in the `default_root_dir`,
    the same on every rank; None if that is on no disk of this machine.
    """
    loggers = trainer.loggers
    if not loggers or any("TensorBoardLogger" in kinds_of(each) for each in loggers):
        return None
    folder = os.path.join(trainer.default_root_dir, LOGS)
    return folder_of_logger(trainer) or (Path(folder) if "://" not in folder else None)


def folder_of_logger(trainer: Trainer) -> Path | None:
    """The folder in which a logger keeps the files of this run, as `CSVLogger` does, on this machine; None without one."""
    folders = (getattr(logger, "log_dir", None) for logger in trainer.loggers)
    return next((Path(each).absolute() for each in folders if isinstance(each, str) and "://" not in each), None)
