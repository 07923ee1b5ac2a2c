"""What a callback saves in checkpoints, and continues from."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from lightning_hooks.callbacks._ours import OurCallback, our_callbacks
from lightning_hooks.callbacks._trainer import SkippedSteps, in_fit
from lightning_hooks.saved_state import read_mapping, starting_again

if TYPE_CHECKING:
    from lightning_hooks.callbacks._lightning import LightningModule, Trainer
    from lightning_hooks.callbacks._run import LightningRun
    from lightning_hooks.engine.running.hook_manager import HookManager


class CheckpointedCallback(OurCallback):
    """A callback of this package that takes part in runs, and saves its state in checkpoints.

    A subclass overrides `_state` and `_load_state` if it has a state. State goes through `on_save_checkpoint`, not through
    `state_dict`: Lightning refuses two callbacks with the same `state_key`, and with a key that contains the rules a changed
    rule would lose the state of all others.
    """

    def __init__(self) -> None:
        super().__init__()
        self._run: LightningRun | None = None  # the run in which the callback takes part
        self._skipped = SkippedSteps()
        self._saved: dict[str, Any] = {}  # the state from a checkpoint, until the run begins
        self._last: dict[str, Any] = {}  # the state of the last fit, for a checkpoint that is saved after it

    def _state(self) -> dict[str, Any]:
        """What a checkpoint keeps of the fit under way; empty if there is none."""
        return {}

    def _load_state(self, state: dict[str, Any]) -> None:
        """Continue the fit under way from a checkpoint, in which the state is empty if there was no such callback."""

    @property
    def _hook_manager(self) -> HookManager | None:
        """The hook manager of the run in which the callback takes part; None outside a run."""
        return None if self._run is None else self._run.hook_manager

    @property
    def _fits(self) -> bool:
        """Whether it takes part in a fit."""
        return self._run is not None and self._run.is_fit

    @override
    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Called for a checkpoint: save what continues from step to step."""
        self._skipped.save(checkpoint, self._hook_manager)
        state = (self._state() if self._fits else None) or self._last or self._saved
        if state:
            checkpoint.setdefault(self._saved_as, {})[self._saved_at(trainer)] = state

    @override
    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Called with a checkpoint, before or after the fit starts: continue from it."""
        if in_fit(trainer):
            self._warn_of_damage(self._skipped.load(checkpoint, self._hook_manager))
        state: dict[str, Any] = {}
        damaged: list[str] = []
        with starting_again(damaged):
            saved, at = read_mapping(checkpoint.get(self._saved_as, {}), self._saved_as), self._saved_at(trainer)
            state = read_mapping(saved.get(at, {}), f"{self._saved_as}[{at!r}]")
        self._warn_of_damage(damaged)
        if self._run is None:
            self._saved = state
        else:
            self._load_state(state)

    def _warn_of_damage(self, damaged: Sequence[str]) -> None:
        """Warn once of what is damaged in a checkpoint; those objects have started again."""
        if damaged:
            name = self._label or f"{type(self).__name__}: "
            warnings.warn(
                f"{name}the checkpoint is damaged; what is damaged starts again, and all else continues: {'; '.join(damaged)}",
                stacklevel=2,
            )

    @property
    def _saved_as(self) -> str:
        """The class of this package, of subclasses too."""
        return next(f"lightning_hooks.{k.__name__}" for k in type(self).__mro__ if k.__module__.startswith("lightning_hooks."))

    def _saved_at(self, trainer: Trainer) -> str:
        """The key of this callback in a checkpoint among those of its class."""
        ours = [callback for callback in our_callbacks(trainer) if isinstance(callback, CheckpointedCallback)]
        same = [each for each in ours if each._saved_as == self._saved_as and each.prefix == self.prefix]
        return f"{self.prefix}{same.index(self)}"

    def _forget_state(self, trainer: Trainer) -> None:
        """Called before a run. Checkpoints are read later; a run of another stage need not have used what it read."""
        self._saved = {}
        # Keep the state of the last fit while other stages run. A checkpoint that is saved after them holds the fit:
        # its optimizers, and this state.
        if in_fit(trainer):
            self._last = {}
            self._skipped.forget()

    def _keep_state(self) -> None:
        """Called when a run ends: keep the state of a fit for a checkpoint that is saved later."""
        # Call `_state` after every run, also where its result is not used: it publishes the step views that are pending.
        state = self._state()
        if self._fits:
            self._last = state
