"""The steps that a loss scaler leaves out: counted once for each model, and kept in the checkpoint."""

from __future__ import annotations

from typing import Any
from weakref import ref

from lightning.pytorch import Trainer
from torch import Tensor

from lightning_hooks.callbacks._trainer import found_inf, has_scaler, in_fit, loss_scale
from lightning_hooks.engine.hook_manager import HookManager
from lightning_hooks.engine.scaling import ScalerWatch

_SAVED_AS = "lightning_hooks.loss_scaler"


class ScalerCount:
    """The watch over the loss scaler that one callback runs for all, and its count from fit to checkpoint."""

    def __init__(self) -> None:
        self._watch: ScalerWatch | None = None
        self._state: dict[str, float] = {}

    def __getstate__(self) -> dict[str, Any]:
        """A copy or a pickle watches nothing."""
        return {"_watch": None, "_state": self._state}

    def start(self, trainer: Trainer, hook_manager: HookManager) -> list[ScalerWatch]:
        """The participant, where the loss of a fit is scaled and nobody watches the scaler yet.

        Args:
            trainer: of the fit.
            hook manager: of the model.
        """
        scaled = has_scaler(trainer) and in_fit(trainer)
        if not scaled or any(isinstance(participant, ScalerWatch) for participant in hook_manager.participants):
            return []
        known = ref(trainer)

        def scale() -> Tensor | None:
            alive = known()
            return None if alive is None else loss_scale(alive)

        def found(optimizer: Any) -> Tensor | None:
            alive = known()
            return None if alive is None else found_inf(alive, optimizer)

        self._watch = ScalerWatch(scale, found, trainer.optimizers)
        self._watch.load_state_dict(self._state)
        return [self._watch]

    def stop(self) -> None:
        """Keep the count for a checkpoint that is saved after the fit."""
        if self._watch is not None:
            self._state = self._watch.state_dict()
            self._watch = None

    def forget(self) -> None:
        """A new run begins at 0, unless a checkpoint says otherwise."""
        self.stop()
        self._state = {}

    def save(self, checkpoint: dict[str, Any]) -> None:
        """Put the count into a checkpoint."""
        state = self._state if self._watch is None else self._watch.state_dict()
        if state:
            checkpoint[_SAVED_AS] = state

    def load(self, checkpoint: dict[str, Any]) -> None:
        """Take the count out of a checkpoint, which may be read before or after the fit starts."""
        self._state = checkpoint.get(_SAVED_AS, {})
        if self._watch is not None:
            self._watch.load_state_dict(self._state)
