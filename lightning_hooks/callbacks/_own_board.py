"""A TensorBoard of our own, for a Trainer that has none."""

from __future__ import annotations

import logging
import os
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from lightning_hooks.engine.hook_manager import HookManager
from lightning_hooks.errors import RuleError

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

    from lightning_hooks.callbacks._lightning import Trainer

_BOARDS: WeakKeyDictionary[Trainer, dict[Path, OwnBoard]] = WeakKeyDictionary()


class OwnBoard:
    """A `SummaryWriter` in a new folder, as the `experiment` of a logger: opened by the first write, closed with the run.

    All callbacks of a Trainer share one; a later run of the same Trainer goes on in its folder.

    Args:
        logdir: holds a folder for each Trainer.
        logger: gets one line with the folder.
    """

    def __init__(self, logdir: Path, logger: logging.Logger) -> None:
        self._logdir = logdir
        self._logger = logger
        self._folder: Path | None = None
        self._writer: SummaryWriter | None = None

    @property
    def experiment(self) -> SummaryWriter:
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            if self._folder is None:
                self._folder = new_folder(self._logdir)
                self._logger.info("lightning_hooks writes to %s: tensorboard --logdir %s", self._folder, self._logdir)
            self._writer = SummaryWriter(self._folder)
        return self._writer

    def remove(self) -> None:
        """Close the event file, as a handle of the run; a second call does nothing."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()


def own_board(trainer: Trainer, hook_manager: HookManager, logdir: str | os.PathLike[str]) -> OwnBoard:
    """The board of a Trainer in a folder, which the end of the run closes.

    Raises:
        RuleError: the folder cannot be written to, which the first write would find only then.
    """
    folder = Path(logdir).expanduser().absolute()
    there = next(path for path in (folder, *folder.parents) if os.path.exists(path))
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise RuleError(f"logdir: cannot write to {str(folder)!r}: {str(there)!r} is not a writable folder")
    # A logger of Lightning's own: it is shown where Lightning's lines are.
    name = next(kind.__module__ for kind in type(trainer).__mro__ if kind.__name__ == "Trainer")
    board = _BOARDS.setdefault(trainer, {}).setdefault(folder, OwnBoard(folder, logging.getLogger(name)))
    if board not in hook_manager.run_handles:
        hook_manager.run_handles.keep(board, key=board)
    return board


def new_folder(parent: Path) -> Path:
    """Make `run_0`, `run_1`, … in a folder: the first number above all there are. Safe with other processes."""
    parent.mkdir(parents=True, exist_ok=True)
    numbers = [path.name.removeprefix("run_") for path in parent.glob("run_*")]
    for number in count(max((int(each) for each in numbers if each.isdecimal()), default=-1) + 1):
        try:
            (parent / f"run_{number}").mkdir()
        except FileExistsError:
            continue
        return parent / f"run_{number}"
    raise AssertionError  # never reached
