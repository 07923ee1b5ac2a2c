"""The run of a plain loop: what the objects of its list share during a block."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from torch.optim import Optimizer

from lightning_hooks.engine.changing.bound import BoundTransform
from lightning_hooks.engine.lookouts.planned import Planned
from lightning_hooks.engine.plain_loop.context import LoopContext
from lightning_hooks.engine.running.run import Run
from lightning_hooks.records.consumer import Latest
from lightning_hooks.records.disk_budget import DiskBudget
from lightning_hooks.rules.fields import check_local
from lightning_hooks.stats.processes import of_first_rank, rank
from lightning_hooks.tensorboard.own_board import OwnBoard, checked_logdir

Folder = str | os.PathLike[str] | None


class LoopRun(Run):
    """One `instrument` block.

    Args:
        model: the root module.
        optimizers: those whose steps end a step; emptied when the block is over.
        callbacks: the objects of the list, in order.
        first_step: the number of the first step.
        folder: where files of the run go; None for the folder of the first event file, if there is one.
        logdir: the folder for event files of the objects that have none of their own; None for none.

    Attributes:
        optimizers: as given.
        callbacks: as given.
        device: of the model.
        latest: the views of the first monitor of the list; without a monitor, what transforms report.
        transforms: those of the objects whose parts are made already.
        captures: the folders that captures write into.
        planned: returns the schedules that the driver advances; none in a plain loop.
        written: what the monitors write whose parts are made already; they know its type.
        disk: the budget on disk of all monitors; None before the part of the first one is made.

    Raises:
        RuleError: a folder is not on this machine, or cannot be written to.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: list[Optimizer],
        callbacks: Sequence[Any],
        *,
        first_step: int = 0,
        folder: Folder = None,
        logdir: Folder = None,
    ) -> None:
        super().__init__(model)
        self.optimizers = optimizers
        self.callbacks = callbacks
        self.device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
        self.latest = Latest()
        self.transforms: list[BoundTransform] = []
        self.written: list[Any] = []
        self.captures: list[Path] = []
        self.disk: DiskBudget | None = None
        self.planned: Callable[[], Sequence[Planned]] = tuple
        self.first_step = first_step
        check_local("folder", folder, "give a local one")
        check_local("logdir", logdir, "give a local one")
        self._folder = folder
        self._logdir = None if logdir is None else checked_logdir(logdir)
        self._boards: dict[Path, OwnBoard] = {}
        self._folders: dict[Path, Path] = {}  # by `logdir`, the new folder in it

    def has_board(self, callback: Any) -> bool:
        """Whether an object of the list writes an event file, which the first rank does; arguments as of `board_of`."""
        return self._logdir_of(callback) is not None

    def board_of(self, callback: Any) -> OwnBoard | None:
        """The event file that an object of the list writes to, which it shares with others; None if it writes to none.

        Args:
            callback: has the attributes `loggers` and `logdir`.

        Raises:
            RuleError: its folder cannot be written to.
        """
        logdir = self._logdir_of(callback)
        return None if logdir is None or rank() != 0 else self._board(logdir)

    def _logdir_of(self, callback: Any) -> Path | None:
        if not callback.loggers:
            return None
        return self._common_logdir if callback.logdir is None else checked_logdir(callback.logdir)

    @property
    def _common_logdir(self) -> Path | None:
        """The folder for event files of an object that has none: that of the block, or of the first object that has one."""
        own = (each.logdir for each in self.callbacks if getattr(each, "loggers", ()) and each.logdir is not None)
        return self._logdir or next(map(checked_logdir, own), None)

    def _board(self, logdir: Path) -> OwnBoard:
        if logdir not in self._boards:
            self._boards[logdir] = OwnBoard(logdir, self._folders, logging.getLogger("lightning_hooks"))
        return self._boards[logdir]

    @cached_property
    def folder(self) -> Path | None:
        """Where files of the run go, the same on every rank. It is created when it is asked for first. Collective."""
        if self._folder is not None:
            return Path(self._folder).expanduser().resolve()
        logdir = self._common_logdir
        if logdir is None:
            return None
        return cast(Path, of_first_rank(self._board(logdir).folder if rank() == 0 else None))

    @cached_property
    def context(self) -> LoopContext:
        """What consumers are given."""
        return LoopContext(self.model, self.optimizers, self.folder)

    def close_boards(self) -> None:
        """Close the event files; a second call does nothing."""
        for board in self._boards.values():
            board.remove()
