"""An event file of this package, for a Trainer without a TensorBoard."""

from __future__ import annotations

import logging
import os
import warnings
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_hooks.errors import RuleError, printable

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class OwnBoard:
    """A `SummaryWriter` in a new folder, as the `experiment` of a logger: opened by the first write, closed with the run.

    All callbacks of a Trainer share one board. A later run of the same Trainer continues in its folder.

    Args:
        logdir: the folder that holds a folder for each Trainer.
        folders: by `logdir`, the folder of this Trainer; added by the first write.
        logger: logs one line with the folder.

    Attributes:
        logdir: the folder that holds a folder for each Trainer.
    """

    def __init__(self, logdir: Path, folders: dict[Path, Path], logger: logging.Logger) -> None:
        self.logdir = logdir
        self._folders = folders
        self._logger = logger
        self._writer: SummaryWriter | None = None

    @property
    def folder(self) -> Path:
        """The folder of the Trainer; created if it does not exist."""
        if self.logdir not in self._folders:
            self._folders[self.logdir] = new_folder(self.logdir)
            self._logger.info("lightning_hooks writes to %s: tensorboard --logdir %s", self.folder, self.logdir)
        return self._folders[self.logdir]

    @property
    def experiment(self) -> SummaryWriter:
        """The open writer."""
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(self.folder)
        return self._writer

    def remove(self) -> None:
        """Close the event file. Called when the handles of the run are closed; a second call does nothing."""
        writer, self._writer = self._writer, None
        if writer is None:
            return
        try:
            writer.close()
        # The disk may be full. Every event of this package is in the file already, and the run must end as usual.
        except Exception as error:
            message = f"the event file in {writer.log_dir} failed when it was closed: {type(error).__name__}: {error}"
            warnings.warn(printable(message), stacklevel=2)


def checked_logdir(logdir: str | os.PathLike[str]) -> Path:
    """The absolute path of a folder in which folders can be created.

    Raises:
        RuleError: the folder cannot be written to. Checked now, because the first write comes much later.
    """
    folder = Path(logdir).expanduser().absolute()
    existing = next(path for path in (folder, *folder.parents) if os.path.exists(path))
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise RuleError(f"logdir: cannot write to {str(folder)!r}: {str(existing)!r} is not a writable folder")
    return folder


def new_folder(parent: Path) -> Path:
    """Create `run_<n>` in a folder, with the first number above all existing ones. Several processes may call it at once."""
    parent.mkdir(parents=True, exist_ok=True)
    numbers = [path.name.removeprefix("run_") for path in parent.glob("run_*")]
    for number in count(max((int(each) for each in numbers if each.isdecimal()), default=-1) + 1):
        try:
            (parent / f"run_{number}").mkdir()
        except FileExistsError:
            continue
        return parent / f"run_{number}"
    raise AssertionError  # never reached
