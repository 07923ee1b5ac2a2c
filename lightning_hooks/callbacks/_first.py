"""The callback that runs before all others: it takes the hooks off before anybody can copy the model."""

from __future__ import annotations

from typing import Any
from weakref import ref

from lightning.pytorch import Callback, LightningModule, Trainer
from typing_extensions import override

from lightning_hooks.callbacks._every_stage import EveryStage
from lightning_hooks.callbacks._trainer import all_callbacks
from lightning_hooks.engine.hook_manager import HookManager
from lightning_hooks.hooks import for_each


class First(EveryStage):
    """Stands at the head of a trainer's callbacks from the first use of a hook manager until that is closed.

    Lightning calls callbacks in their order, and an error in one keeps it from calling those behind: only the first one knows
    for sure that a batch, or the run, is over.

    Args:
        trainer: whose callbacks.
        hook manager: of the model.
    """

    def __init__(self, trainer: Trainer, hook_manager: HookManager) -> None:
        self._trainer = ref(trainer)
        self._hook_manager = ref(hook_manager)
        self._given: list[Callback] = []

    def __getstate__(self) -> dict[str, Any]:
        """A copy or a pickle belongs to nobody."""
        return {"_trainer": lambda: None, "_hook_manager": lambda: None, "_given": []}

    def install(self) -> First:
        """Put it there. The list is another one: Lightning may be going through the one that there is."""
        trainer: Any = self._trainer()
        self._given = trainer.callbacks
        trainer.callbacks = [self, *self._given]
        return self

    def remove(self) -> None:
        """Take it away; harmless the second time. The list is the one that was given, where it is still right."""
        trainer: Any = self._trainer()
        given, self._given = self._given, []
        if trainer is not None and any(callback is self for callback in trainer.callbacks):
            left = [callback for callback in trainer.callbacks if callback is not self]
            same = len(left) == len(given) and all(one is other for one, other in zip(left, given, strict=True))
            trainer.callbacks = given if same else left

    def _suspend(self) -> None:
        hook_manager = self._hook_manager()
        if hook_manager is not None:
            hook_manager.end_batch()

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Called after a batch."""
        self._suspend()

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Called after an epoch, also one whose last batch was cut short."""
        self._suspend()

    @override
    def _start_run(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._suspend()

    @override
    def _end_batch(self, trainer: Trainer, stage: str, batch_idx: int, dataloader_idx: int) -> None:
        self._suspend()

    @override
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Called when the run failed: whatever the other callbacks do then, ours leave."""
        self._suspend()
        ours = [callback for callback in all_callbacks(trainer) if hasattr(callback, "_leave")]
        for_each(lambda callback: callback.on_exception(trainer, pl_module, exception), ours)
