"""What a consumer knows of the run whose steps it reads, and what it can do to that run."""

from __future__ import annotations

import os
from dataclasses import KW_ONLY, dataclass
from pathlib import Path

from lightning_hooks.errors import RuleError, shown
from lightning_hooks.records.facts import OptimizerFacts


@dataclass(frozen=True)
class RunFacts:
    """How a run trains, in plain values. Nothing here waits for a device.

    Args:
        optimizers: empty outside training, and in a plain loop without an optimizer.
        precision: as Lightning calls it, for example `16-mixed`; None in a plain loop, which does not say.
        accumulate: the number of batches in one step of the optimizer; None in a plain loop.
        rank: the number of this process.
        ranks: the number of processes.
        loss_scale: by which the loss is multiplied; 1.0 without a loss scaler, None if only the device knows the number.
    """

    optimizers: tuple[OptimizerFacts, ...] = ()
    _: KW_ONLY
    precision: str | None = None
    accumulate: int | None = None
    rank: int = 0
    ranks: int = 1
    loss_scale: float | None = 1.0


class RunContext:
    """The run of a consumer: its folder, its facts, and two requests to it.

    A consumer may keep it: it keeps neither the model nor the Trainer alive. With several ranks a consumer must make the same
    requests at the same view on every rank. Views are equal on all ranks, so a consumer that decides by views alone does so.

    Args:
        folder: where files of the run go, the same on every rank; None if the run has no folder on this machine.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder

    @property
    def facts(self) -> RunFacts:
        """How the run trains now: a learning rate that a scheduler has changed is the changed one."""
        raise NotImplementedError

    def stop(self, reason: str) -> None:
        """Ask the run to stop; the first reason is logged once.

        A fit stops at the end of the step, as `trainer.should_stop` does: not before `min_epochs` and `min_steps`. In a plain
        loop `watched.stopped` holds the reason from now on.

        Args:
            reason: in words.
        """
        raise NotImplementedError

    def save_checkpoint(self, name: str) -> None:
        """Ask for a checkpoint in the folder of the run, with all that Lightning saves, at the end of the step.

        Args:
            name: of the file; `.ckpt` is appended if the name has no such ending.

        Raises:
            RuleError: the name has a path separator.
            UnsupportedError: the run has no folder on this machine, or is a plain loop.
        """
        raise NotImplementedError


def check_reason(reason: object) -> None:
    """Refuse a reason that says nothing.

    Raises:
        RuleError: it is no text.
    """
    if not isinstance(reason, str) or not reason.strip():
        raise RuleError(f"stop: reason must be a text that says why the run stops, got {shown(reason)}")


def checkpoint_name(name: object) -> str:
    """The name of a checkpoint file, with its ending.

    Raises:
        RuleError: it is not the name of a file in a folder.
    """
    separators = [separator for separator in ("/", "\\", os.sep, os.altsep) if separator]
    if not isinstance(name, str) or not name.strip(" .") or any(each in name for each in separators) or "\0" in name:
        raise RuleError(
            "save_checkpoint: name must be the name of a file in the folder of the run, without path separators, got "
            f"{shown(name)}"
        )
    return name if name.endswith(".ckpt") else f"{name}.ckpt"
