"""Reads the arguments of `check` that say how a plain loop trains."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.optim import Optimizer

from lightning_hooks.engine.rerun.plain import PlainTraining
from lightning_hooks.errors import RuleError, shown
from lightning_hooks.nested.tensors import tensors_of


def as_plain_training(
    model: Any, batch: Any, loss: Any = None, optimizer: Any = None, step: Any = None, accumulate: Any = 1
) -> PlainTraining:
    """The training of a plain loop.

    Args:
        model: the module.
        batch: `(inputs, target)` with a loss; with a `step` anything.
        loss: as of `PlainTraining`.
        optimizer: one, or several; all take a step.
        step: as of `PlainTraining`.
        accumulate: the number of batches whose gradients the loop adds up for one step of the optimizer.

    Raises:
        RuleError: an argument is of another type.
    """
    if not isinstance(model, nn.Module):
        raise RuleError(f"check: the model must be a torch.nn.Module, or the first argument a Trainer, got {shown(model)}")
    for name, function in (("loss", loss), ("step", step)):
        if function is not None and not callable(function):
            raise RuleError(f"check: {name} must be a function, got {shown(function)}")
    if loss is not None and step is not None:
        raise RuleError("check: give either loss=, called as loss(output, target), or step=, called as step(model, batch)")
    if loss is not None and not (isinstance(batch, (tuple, list)) and len(batch) == 2):
        raise RuleError(
            f"check: with loss= the batch must be a pair (inputs, target), got {type(batch).__name__}; for other batches "
            "give step=, called as step(model, batch)"
        )
    if loss is None and step is None and hasattr(model, "training_step"):
        raise RuleError(f"check: {type(model).__name__} is a LightningModule; call check(trainer, module, data)")
    if isinstance(accumulate, bool) or not isinstance(accumulate, int) or accumulate < 1:
        raise RuleError(f"check: accumulate must be a number of batches from 1 on, got {shown(accumulate)}")
    if not tensors_of(batch):
        raise RuleError(f"check: the batch holds no tensor, got {shown(batch)}")
    optimizers = _as_optimizers(optimizer)
    return PlainTraining(model, lambda: optimizers, loss, step, accumulate)


def _as_optimizers(optimizer: Any) -> list[Optimizer]:
    optimizers = [] if optimizer is None else list(optimizer) if isinstance(optimizer, (list, tuple)) else [optimizer]
    for each in optimizers:
        if not isinstance(each, Optimizer):
            raise RuleError(f"check: optimizer must be a torch.optim.Optimizer or a list of these, got {shown(each)}")
    return optimizers
