"""What a callback saves in checkpoints, and continues from."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from lightning_hooks.callbacks._trainer import SkippedSteps, in_fit
from lightning_hooks.saved_state import read_mapping, starting_again

if TYPE_CHECKING:
    from lightning_hooks.callbacks._lightning import Trainer
    from lightning_hooks.engine.running.hook_manager import HookManager


class Saving:
    """The state of a callback in the checkpoints of a Trainer.

    State goes through `on_save_checkpoint`, not through `state_dict`: Lightning refuses two callbacks with the same
    `state_key`, and with a key that contains the rules a changed rule would lose the state of all others.

    Args:
        kind: the class under which the state is saved.

    Attributes:
        key: of the class in a checkpoint.
        skipped: the steps that the loss scaler has skipped.
        saved: the state from a checkpoint, until the run begins.
        last: the state of the last fit, for a checkpoint that is saved after it.
    """

    def __init__(self, kind: type) -> None:
        # Subclasses of the user's save under the name of the class of this package.
        names = (each.__name__ for each in kind.__mro__ if each.__module__.startswith("lightning_hooks."))
        self.key = f"lightning_hooks.{next(names)}"
        self.skipped = SkippedSteps()
        self.saved: dict[str, Any] = {}
        self.last: dict[str, Any] = {}

    def save(self, checkpoint: dict[str, Any], at: str, state: dict[str, Any], hook_manager: HookManager | None) -> None:
        """Add the state to a checkpoint.

        Args:
            checkpoint: the checkpoint.
            at: the key of the callback among those of its class.
            state: of the fit under way; empty if there is none.
            hook_manager: of the run; None outside a run.
        """
        self.skipped.save(checkpoint, hook_manager)
        state = state or self.last or self.saved
        if state:
            checkpoint.setdefault(self.key, {})[at] = state

    def load(
        self,
        checkpoint: dict[str, Any],
        at: str,
        trainer: Trainer,
        hook_manager: HookManager | None,
        warn: Callable[[Sequence[str]], None],
    ) -> dict[str, Any]:
        """The state in a checkpoint; empty if it has none, or a damaged one.

        Args:
            checkpoint: the checkpoint.
            at: the key of the callback among those of its class.
            trainer: the Trainer.
            hook_manager: of the run; None outside a run.
            warn: warns of what is damaged.
        """
        if in_fit(trainer):
            warn(self.skipped.load(checkpoint, hook_manager))
        state: dict[str, Any] = {}
        damaged: list[str] = []
        with starting_again(damaged):
            saved = read_mapping(checkpoint.get(self.key, {}), self.key)
            state = read_mapping(saved.get(at, {}), f"{self.key}[{at!r}]")
        warn(damaged)
        return state

    def take(self) -> dict[str, Any]:
        """The state from a checkpoint, for the run that begins; it is used once."""
        saved, self.saved = self.saved, {}
        return saved

    def forget(self, trainer: Trainer) -> None:
        """Called before a run. Checkpoints are read later; a run of another stage need not have used what it read."""
        self.saved = {}
        # Keep the state of the last fit while other stages run. A checkpoint that is saved after them holds the fit: its
        # optimizers, and this state.
        if in_fit(trainer):
            self.last = {}
            self.skipped.forget()


def warn_of_damage(name: str, damaged: Sequence[str]) -> None:
    """Warn once of what is damaged in a checkpoint; those objects have started again.

    Args:
        name: of the callback, with a colon.
        damaged: a sentence about each.
    """
    if damaged:
        warnings.warn(
            f"{name}the checkpoint is damaged; what is damaged starts again, and all else continues: {'; '.join(damaged)}",
            stacklevel=3,
        )
