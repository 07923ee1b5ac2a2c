"""A TensorBoard of our own, for a Trainer that has none."""

from __future__ import annotations

import logging
import os
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_hooks.errors import RuleError

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class OwnBoard:
    """A `SummaryWriter` in a new folder, as the `experiment` of a logger: opened by the first write, closed with the run.

    All callbacks of a Trainer share one; a later run of the same Trainer goes on in its folder.

    Args:
        logdir: holds a folder for each Trainer.
        folders: the folder of this Trainer by `logdir`, which the first write adds.
        logger: gets one line with the folder.
    """

    def __init__(self, logdir: Path, folders: dict[Path, Path], logger: logging.Logger) -> None:
        self._logdir = logdir
        self._folders = folders
        self._logger = logger
        self._writer: SummaryWriter | None = None

    @property
    def folder(self) -> Path:
        """The folder of the Trainer; made if there is none."""
        if self._logdir not in self._folders:
            self._folders[self._logdir] = new_folder(self._logdir)
            self._logger.info("lightning_hooks writes to %s: tensorboard --logdir %s", self.folder, self._logdir)
        return self._folders[self._logdir]

    @property
    def experiment(self) -> SummaryWriter:
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(self.folder)
        return self._writer

    def remove(self) -> None:
        """Close the event file, as a handle of the run; a second call does nothing."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()


def checked_logdir(logdir: str | os.PathLike[str]) -> Path:
    """The absolute path of a folder in which folders can be made.

    Raises:
        RuleError: the folder cannot be written to, which the first write would find only then.
    """
    folder = Path(logdir).expanduser().absolute()
    there = next(path for path in (folder, *folder.parents) if os.path.exists(path))
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise RuleError(f"logdir: cannot write to {str(folder)!r}: {str(there)!r} is not a writable folder")
    return folder


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
