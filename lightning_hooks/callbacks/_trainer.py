"""What a trainer is asked about the run that is under way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.trainer.states import TrainerFn, TrainerStatus
from torch import Tensor


def all_callbacks(trainer: Trainer) -> list[Callback]:
    """The callbacks of a trainer, in order."""
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    return callbacks


def is_running(trainer: Trainer | None) -> bool:
    """Whether a run of a trainer is under way; one that failed is not, whatever it left behind."""
    return trainer is not None and trainer.state.status == TrainerStatus.RUNNING


def current_step(trainer: Trainer) -> int:
    """The x-axis of `self.log`: the same for all batches of an accumulation window."""
    return int(trainer.fit_loop.epoch_loop._batches_that_stepped)


def is_log_step(trainer: Trainer, step: int) -> bool:
    """Whether Lightning logs at a step."""
    every: int = trainer.log_every_n_steps  # type: ignore[attr-defined]
    return every > 0 and (step + 1) % every == 0


def has_scaler(trainer: Trainer) -> bool:
    """Whether the loss is multiplied by a scale, from some step on."""
    return getattr(trainer.precision_plugin, "scaler", None) is not None


def loss_scale(trainer: Trainer) -> Tensor | None:
    """The scale of the loss as a tensor, or None where there is no scaler or it has not scaled yet."""
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    return None if scaler is None else getattr(scaler, "_scale", None)


def found_inf(trainer: Trainer, optimizer: Any) -> Tensor | None:
    """What the loss scaler found in the gradients of an optimizer since its last step, as a tensor: 0 for nothing infinite.

    None where it has not looked: it looks when it divides by the scale, which for a fused optimizer is inside its step.
    """
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    seen = getattr(scaler, "_per_optimizer_states", {})
    by_device = seen[id(optimizer)].get("found_inf_per_device", {}) if id(optimizer) in seen else {}
    found = [each.to(trainer.strategy.root_device) for each in by_device.values()]
    return torch.stack(found).sum() if found else None


def in_fit(trainer: Trainer) -> bool:
    """Whether the run is a fit; a validation may be part of one, or stand alone."""
    return trainer.state.fn == TrainerFn.FITTING


def batch_number(trainer: Trainer, stage: str) -> int:
    """The number, from 0, of the batch that begins, in a run of a stage other than `train`, over all loaders.

    It starts anew in every run, as Lightning's own totals do in every epoch: each validation acts on the same batches.
    """
    if stage == "validate":
        loop = trainer.fit_loop.epoch_loop.val_loop if in_fit(trainer) else trainer.validate_loop
        return loop.batch_progress.current.ready - 1
    return (trainer.test_loop if stage == "test" else trainer.predict_loop).batch_progress.current.ready - 1


def sample_indices(trainer: Trainer, stage: str, batch_idx: int, dataloader_idx: int) -> Sequence[int] | None:
    """Which samples of the data set a batch holds; known when predicting from a `DataLoader` with a batch sampler."""
    combined = trainer.predict_loop._combined_loader if stage == "predict" else None
    if combined is None:
        return None
    # Lightning notes what the sampler of a prediction gave.
    sampler = getattr(combined.flattened[dataloader_idx], "batch_sampler", None)
    seen: Sequence[Sequence[int]] = getattr(sampler, "seen_batch_indices", ())
    return seen[batch_idx] if batch_idx < len(seen) else None
