"""Runs the batch under way again, inside the step of a Trainer, without the Trainer's own participants."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch
from torch import Tensor

from lightning_hooks.callbacks._run import LightningRun
from lightning_hooks.callbacks._trainer import has_scaler, loss_divisor
from lightning_hooks.callbacks._training_step import call_training_step, takes_iterator, tensor_loss_of, unlogged

if TYPE_CHECKING:
    from lightning_hooks.callbacks._lightning import LightningModule, Trainer


class StopHereError(Exception):
    """An optimizer is about to step in a batch that is run again: its backward has been seen."""


def why_not_again(trainer: Trainer, pl_module: LightningModule) -> str:
    """Why a step of a Trainer cannot be run again by one process; empty if it can.

    A model whose parts are on several devices needs all processes for each step.
    """
    if takes_iterator(pl_module):
        return "the training step takes its batches from an iterator"
    kinds = {kind.__name__ for kind in type(trainer.strategy).__mro__}
    if kinds & {"SingleDeviceStrategy", "DDPStrategy"}:
        return ""
    return f"with {type(trainer.strategy).__name__} one process cannot run it alone"


def step_again(
    trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, taken: int = 0
) -> Callable[[], Tensor | None]:
    """A function that runs the training step and the backward of a batch again, with the precision of the Trainer.

    With manual optimization it ends where an optimizer would step that has not stepped yet in this batch.

    Args:
        trainer: the Trainer.
        pl_module: the module.
        batch: the batch.
        batch_idx: its number.
        taken: the number of steps that optimizers have taken in the batch, with manual optimization.
    """
    untyped: Any = trainer

    def manual() -> None:
        with suppressed_steps(pl_module, taken):
            call_training_step(pl_module, batch, batch_idx)

    def automatic() -> Tensor | None:
        with untyped.precision_plugin.train_step_context():
            loss = tensor_loss_of(call_training_step(pl_module, batch, batch_idx))
        if loss is None:
            return None
        scaled = loss / loss_divisor(trainer, pl_module)
        if has_scaler(trainer):
            scaled = untyped.precision_plugin.scaler.scale(scaled)
        scaled.backward()
        return loss

    return automatic if pl_module.automatic_optimization else manual


@contextmanager
def suppressed_steps(pl_module: LightningModule, taken: int = 0) -> Iterator[None]:
    """No optimizer steps in the block, and backwards call no callbacks.

    Steps that were taken before do nothing, since the weights have them already. The next that would be taken ends the block.
    """
    untyped: Any = pl_module
    left = iter(range(taken))

    def backward(loss: Tensor, *args: Any, **kwargs: Any) -> None:
        loss.backward(*args, **kwargs)

    def stop(*args: Any, **kwargs: Any) -> None:
        if next(left, None) is None:
            raise StopHereError

    with ExitStack() as stack:
        stack.enter_context(patch.object(untyped, "manual_backward", backward))
        for optimizer in untyped.trainer.strategy._lightning_optimizers:
            stack.enter_context(patch.object(optimizer, "step", stop))
        try:
            yield
        except StopHereError:
            return


@contextmanager
def quiet(run: LightningRun, pl_module: LightningModule) -> Iterator[None]:
    """Surrounds a step that is run again: no hooks of this package, and nothing is logged."""
    token = object()
    with ExitStack() as stack:
        stack.enter_context(unlogged(pl_module))
        run.hook_manager.pause(token)
        stack.callback(run.hook_manager.resume, token)
        stack.enter_context(torch.enable_grad())
        yield
