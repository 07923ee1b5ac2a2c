"""Lightning has hooks of the same meaning for validation, testing and predicting: here they become one each."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from typing_extensions import override


class EveryStage(Callback):
    """Base that is told the stage: `validate`, `test` or `predict`."""

    def _start_run(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Called before the run of a stage; a validation may be part of a fit, or stand alone."""

    def _start_batch(self, trainer: Trainer, stage: str, batch_idx: int, dataloader_idx: int) -> None:
        """Called before each batch."""

    def _end_batch(self, trainer: Trainer, stage: str, batch_idx: int, dataloader_idx: int) -> None:
        """Called after each batch."""

    def _end_run(self, trainer: Trainer, stage: str) -> None:
        """Called after the run."""

    @override
    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Called before validation, within a fit or alone."""
        self._start_run(trainer, pl_module, "validate")

    @override
    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Called before testing."""
        self._start_run(trainer, pl_module, "test")

    @override
    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Called before predicting."""
        self._start_run(trainer, pl_module, "predict")

    @override
    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Called before a batch: open the gate."""
        self._start_batch(trainer, "validate", batch_idx, dataloader_idx)

    @override
    def on_test_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Called before a batch: open the gate."""
        self._start_batch(trainer, "test", batch_idx, dataloader_idx)

    @override
    def on_predict_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Called before a batch: open the gate."""
        self._start_batch(trainer, "predict", batch_idx, dataloader_idx)

    @override
    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Called after a batch: close the gate."""
        self._end_batch(trainer, "validate", batch_idx, dataloader_idx)

    @override
    def on_test_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Called after a batch: close the gate."""
        self._end_batch(trainer, "test", batch_idx, dataloader_idx)

    @override
    def on_predict_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Called after a batch: close the gate."""
        self._end_batch(trainer, "predict", batch_idx, dataloader_idx)

    @override
    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Called after validation."""
        self._end_run(trainer, "validate")

    @override
    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Called after testing."""
        self._end_run(trainer, "test")

    @override
    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Called after predicting."""
        self._end_run(trainer, "predict")
