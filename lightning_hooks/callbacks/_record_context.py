"""The context of a flight record: how a Trainer trains at the step, as plain values."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Any

import torch

from lightning_hooks import __version__
from lightning_hooks.callbacks._trainer import host_loss_scale, optimizers_of
from lightning_hooks.engine.participants.facts import facts_of_optimizers

if TYPE_CHECKING:
    from lightning_hooks.callbacks._lightning import LightningModule, Trainer


def context_of(trainer: Trainer, pl_module: LightningModule) -> dict[str, Any]:
    """What a person has to know of a training to judge a record, and what a replay needs to build it again."""
    facts = facts_of_optimizers(optimizers_of(trainer), pl_module)
    checkpoint = getattr(trainer.checkpoint_callback, "last_model_path", "") or getattr(
        trainer.checkpoint_callback, "best_model_path", ""
    )
    compiled = [name for name, module in pl_module.named_modules() if getattr(module, "_compiled_call_impl", None) is not None]
    return {
        "epoch": trainer.current_epoch,
        "batch_idx": trainer.fit_loop.epoch_loop.batch_idx,
        "global_step": trainer.global_step,
        "optimizers": {f"{i} {each.type}": [group.lr for group in each.groups] for i, each in enumerate(facts)},
        "loss_scale": host_loss_scale(trainer),
        "gradient_clip_val": trainer.gradient_clip_val,
        "gradient_clip_algorithm": trainer.gradient_clip_algorithm,
        "precision": str(trainer.precision),
        "accumulate_grad_batches": trainer.accumulate_grad_batches,
        "automatic_optimization": pl_module.automatic_optimization,
        "strategy": type(trainer.strategy).__name__,
        "device": str(pl_module.device),
        "compiled": compiled,
        "module": f"{type(pl_module).__module__}.{type(pl_module).__qualname__}",
        "hyperparameters": {str(name): value for name, value in dict(getattr(pl_module, "hparams", {})).items()},
        "checkpoint": checkpoint,
        "torch": torch.__version__,
        "lightning": _version_of_lightning(trainer),
        "lightning_hooks": __version__,
        "python": platform.python_version(),
    }


def _version_of_lightning(trainer: Trainer) -> str:
    import sys

    root = next(kind.__module__ for kind in type(trainer).__mro__ if kind.__name__ == "Trainer").partition(".")[0]
    return str(getattr(sys.modules.get(root), "__version__", ""))
