"""The Trainer of a flight record: with the precision, the device, the clipping and the counts of the run, for one batch."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

import torch


def trainer_of_record(package: ModuleType, context: Mapping[str, Any], callback: Any, folder: str, notes: list[str]) -> Any:
    """A Trainer that trains as the run that was recorded, and writes and prints nothing.

    Args:
        package: `lightning.pytorch` or `pytorch_lightning`.
        context: of the record.
        callback: the only callback.
        folder: where Lightning may write.
        notes: gets a sentence for each difference from the run.
    """
    trainer = package.Trainer(
        callbacks=[callback],
        default_root_dir=folder,
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_val_batches=0,
        num_sanity_val_steps=0,
        log_every_n_steps=1,
        max_epochs=(context.get("epoch") or 0) + 1,
        gradient_clip_val=context.get("gradient_clip_val"),
        gradient_clip_algorithm=context.get("gradient_clip_algorithm"),
        accumulate_grad_batches=context.get("accumulate_grad_batches") or 1,
        **_precision_arguments(package, context, notes),
    )
    _set_counts(trainer, context.get("epoch") or 0, context.get("global_step") or 0)
    return trainer


def fit_one_batch(trainer: Any, model: Any, batch: Any, batch_idx: int) -> None:
    """Train one batch of a record, under its number in the epoch.

    The batch is as the training step got it, so the module does not transform it again, and it downloads nothing.
    """
    model.on_before_batch_transfer = model.on_after_batch_transfer = lambda batch, dataloader_idx: batch
    model.configure_callbacks, model.prepare_data = list, lambda: None
    trainer.fit(model, train_dataloaders=_OneBatch(trainer, batch, batch_idx))


class _OneBatch:
    """A data loader with one batch, which the Trainer counts as the batch of the record."""

    def __init__(self, trainer: Any, batch: Any, batch_idx: int) -> None:
        self._trainer, self._batch, self._batch_idx = trainer, batch, batch_idx

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[Any]:
        # The loop counts batches from 0 when it starts, and takes the index right after it has got the batch.
        self._trainer.fit_loop.epoch_loop.batch_progress.current.ready = self._batch_idx
        yield copy.deepcopy(self._batch)


def _set_counts(trainer: Any, epoch: int, step: int) -> None:
    """Let `current_epoch` and `global_step` be those of the record: modules have schedules by them."""
    trainer.fit_loop.epoch_progress.current.processed = epoch
    loop = trainer.fit_loop.epoch_loop
    # One of the two counts, depending on who calls the optimizers.
    loop.automatic_optimization.optim_progress.optimizer.step.total.completed = step
    loop.manual_optimization.optim_step_progress.total.completed = step


def _precision_arguments(package: ModuleType, context: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    """The arguments of a Trainer for the precision and the device of the record."""
    device = str(context.get("device") or "cpu").partition(":")[0]
    is_there = device != "cuda" or torch.cuda.is_available()
    if not is_there:
        notes.append("the step was recorded on a CUDA device, and runs on the CPU here")
    device = device if is_there else "cpu"
    precision = str(context.get("precision") or "32-true")
    arguments: dict[str, Any] = {"accelerator": "gpu" if device == "cuda" else device}
    if precision != "16-mixed":
        return {**arguments, "precision": precision}
    scaler = torch.amp.GradScaler(device, init_scale=float(context.get("loss_scale") or 65536.0))
    plugins = importlib.import_module(f"{package.__name__}.plugins")
    return {**arguments, "plugins": [plugins.MixedPrecision(precision, device, scaler)]}
