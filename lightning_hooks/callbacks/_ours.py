"""The base of every callback of this package, and which callbacks of a Trainer are of this package."""

from __future__ import annotations

import os
import warnings
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from lightning_hooks.callbacks._lightning import Callback
from lightning_hooks.callbacks._trainer import all_callbacks
from lightning_hooks.engine.match_report import Match

if TYPE_CHECKING:
    from lightning_hooks.callbacks._lightning import LightningModule, Trainer


class OurCallback(Callback):
    """What tells a callback of this package.

    Attributes:
        origin: the file and the key in it that it was read from, for messages; empty for one made in Python.
        environment: a mark that the callbacks of one Trainer from the environment variable share; None for others.
        loggers: which loggers are written to.
        logdir: where an event file of our own is made if none of them is a TensorBoard.
        prefix: of every tag.
        stages: in which it acts.
    """

    origin: str = ""
    environment: str | None = None
    loggers: Sequence[str] = ("all",)
    logdir: str | os.PathLike[str] | None = None
    prefix: str = ""
    stages: Collection[str] = ("train",)

    def match(self, model: LightningModule) -> Match:
        """What the rules match in a model, without a run."""
        raise NotImplementedError

    @property
    def _label(self) -> str:
        """What goes before the names of rules in messages: the file and the class; nothing for one made in Python."""
        return f"{self.origin}: {type(self).__name__}: " if self.origin else ""


def for_each_stage(method: str) -> tuple[Any, ...]:
    """Lightning's hooks that call a method with each stage other than `train`."""

    def hook_of(stage: str) -> Any:
        def hook(self: OurCallback, trainer: Trainer, pl_module: LightningModule, *args: Any, **kwargs: Any) -> None:
            getattr(self, method)(stage, trainer, pl_module, *args, **kwargs)

        return hook

    return tuple(map(hook_of, ("validate", "test", "predict")))


def our_callbacks(trainer: Trainer) -> list[OurCallback]:
    """The callbacks of this package in a trainer, in order.

    Lightning adds those from the environment to the list that the Trainer is given. A second Trainer with that list has
    those of the first too: only its own count, which come last.
    """
    ours = [callback for callback in all_callbacks(trainer) if isinstance(callback, OurCallback)]
    marks = [callback.environment for callback in ours if callback.environment is not None]
    return [callback for callback in ours if callback.environment is None or callback.environment == marks[-1]]


def take_part_once(callback: OurCallback, trainer: Trainer) -> None:
    """Leave a callback in the list of a trainer once: Lightning would call it twice, and what it changes would change twice."""
    here: Any = trainer
    places = [i for i, each in enumerate(here.callbacks) if each is callback]
    if len(places) > 1:
        here.callbacks = [each for i, each in enumerate(here.callbacks) if i not in places[1:]]
        warnings.warn(
            f"{type(callback).__name__} appears {len(places)} times in the callbacks of the Trainer; it acts once", stacklevel=2
        )
