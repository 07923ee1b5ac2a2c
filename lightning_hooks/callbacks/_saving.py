"""What a callback saves in checkpoints, and continues from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lightning_hooks.callbacks._trainer import SkippedSteps, in_fit
from lightning_hooks.saved_state import read_mapping

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

    def read(self, checkpoint: Mapping[str, Any], at: str) -> dict[str, Any]:
        """The state in a checkpoint; empty if it has none.

        Args:
            checkpoint: the checkpoint.
            at: the key of the callback among those of its class.

        Raises:
            DamagedState: the checkpoint has something else in its place.
        """
        saved = read_mapping(checkpoint.get(self.key, {}), self.key)
        return read_mapping(saved.get(at, {}), f"{self.key}[{at!r}]")

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
