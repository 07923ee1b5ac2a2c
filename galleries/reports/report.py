"""What a rebuilt report or a common fault is, and how its script is run."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer
from torch import nn
from torch.optim import Optimizer

from lightning_hooks import instrument


def _nobody() -> list[Any]:
    return []


@dataclass(frozen=True)
class Run:
    """How a script is run.

    Args:
        is_fixed: whether the fault is left out.
        seed: of the weights and the data.
        folder: for checkpoints and other files.
        watchers: makes the callbacks that watch; none by default.
        width: factor of the number of units of each hidden layer.
    """

    is_fixed: bool
    seed: int
    folder: Path
    watchers: Callable[[], list[Any]] = field(default=_nobody)
    width: int = 1

    def trainer(self, **options: Any) -> Trainer:
        """A Trainer on the CPU with the callbacks that watch, behind those of the script.

        Args:
            options: of the Trainer.
        """
        usual: dict[str, Any] = {
            "accelerator": "cpu",
            "devices": 1,
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "default_root_dir": self.folder,
        }
        callbacks = [*options.pop("callbacks", []), *self.watchers()]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return Trainer(**{**usual, **options}, callbacks=callbacks)

    @contextmanager
    def watching(self, model: nn.Module, optimizer: Optimizer | list[Optimizer], **options: Any) -> Iterator[None]:
        """Watch a plain loop within a `with` block.

        Args:
            model: the root module.
            optimizer: one or several.
            options: of `instrument`.
        """
        watchers = self.watchers()
        if not watchers:
            yield
            return
        with instrument(model, watchers, optimizer=optimizer, folder=self.folder, **options):
            yield


@dataclass(frozen=True)
class Report:
    """A training that does not work, and whose reason is known; or a healthy one.

    Args:
        number: of the public thread, or above 200 for a training that no thread reports.
        name: in kebab case.
        doc: what is wrong, in a sentence.
        train: trains, and returns a measure on fresh data of which more is better.
        cause: what must be said of it, in words; empty for a healthy training.
    """

    number: int
    name: str
    doc: str
    train: Callable[[Run], float]
    cause: str
