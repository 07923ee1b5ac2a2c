"""The training of a LightningModule as checks run it: its own training step, which nobody else hears of."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

import torch
from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import override

from lightning_hooks.callbacks._lightning import DISTRIBUTIONS
from lightning_hooks.callbacks._trainer import has_scaler
from lightning_hooks.callbacks._training_step import call_training_step, ignore, loss_of, takes_iterator, unlogged
from lightning_hooks.checks.errors import CommunicationError
from lightning_hooks.checks.training import Training
from lightning_hooks.errors import UnsupportedError, shown

if TYPE_CHECKING:
    from lightning_hooks.callbacks._lightning import LightningModule, Trainer

_COLLECTIVES: Final = (
    "all_reduce", "all_gather", "all_gather_into_tensor", "all_gather_object", "all_to_all", "all_to_all_single", "barrier",
    "broadcast", "broadcast_object_list", "gather", "gather_object", "reduce", "reduce_scatter", "reduce_scatter_tensor",
    "scatter", "send", "recv",
)  # fmt: skip


class LightningTraining(Training):
    """The step of a LightningModule within a fit: its own `training_step`, with the precision and the clipping of the Trainer.

    While a step runs, the Trainer has no callbacks, and loggers and `self.log` do nothing.

    Args:
        trainer: of the fit.
        module: whose step is run.
        batch: on the device of the module.
    """

    def __init__(self, trainer: Trainer, module: LightningModule, batch: Any) -> None:
        optimizers = [each for each in trainer.optimizers if isinstance(each, Optimizer) and each.param_groups]
        # Lightning has an optimizer of its own for a module without one, which holds a parameter of no model.
        mocked = [each for each in optimizers if type(each).__name__ == "_MockOptimizer"]
        super().__init__(module, batch, [each for each in optimizers if each not in mocked])
        self._trainer = trainer
        self.scales_loss = has_scaler(trainer)
        self.precision = "float32" if trainer.precision == "32-true" else str(trainer.precision)
        if trainer.world_size > 1:
            self.notes.append("the first of several ranks ran the checks, and exchanged nothing")

    @property
    @override
    def holders(self) -> Iterable[Any]:
        schedulers = [each.scheduler for each in self._trainer.lr_scheduler_configs]
        return [*schedulers, getattr(self._trainer.precision_plugin, "scaler", None)]

    @override
    def context(self) -> AbstractContextManager[Any]:
        context: AbstractContextManager[Any] = self._trainer.precision_plugin.forward_context()
        return context

    @override
    def step(self, batch: Any, index: int) -> None:
        module: Any = self.model
        with _quiet(self._trainer, module):
            module.on_train_batch_start(batch, index)
            if not module.automatic_optimization:
                with self._trainer.precision_plugin.train_step_context():
                    _training_step(module, batch, index)
                return
            optimizer = module.optimizers() if self.optimizers else None
            if isinstance(optimizer, list):
                optimizer = optimizer[0]

            def closure() -> Tensor | None:
                with self._trainer.precision_plugin.train_step_context():
                    loss = _loss_of(_training_step(module, batch, index))
                if self.optimizers:
                    module.optimizer_zero_grad(self._trainer.current_epoch, index, self.optimizers[0])
                if loss is not None and loss.requires_grad:
                    self._trainer.strategy.backward(loss, self.optimizers[0] if self.optimizers else None)
                return loss

            if optimizer is None:
                closure()
            else:
                module.optimizer_step(self._trainer.current_epoch, index, optimizer, closure)


def _training_step(module: Any, batch: Any, index: int) -> Any:
    if takes_iterator(module):
        raise UnsupportedError("the training step takes batches from the loader itself (dataloader_iter)")
    return call_training_step(module, batch, index)


def _loss_of(output: Any) -> Tensor | None:
    loss = loss_of(output)
    if loss is not None and not isinstance(loss, Tensor):
        raise TypeError(f"training_step must return a tensor, a mapping with the loss, or None, got {shown(output)}")
    return loss


@contextmanager
def _quiet(trainer: Trainer, module: Any) -> Iterator[None]:
    """Keep a step to itself: no callback is called, nothing is logged, no rank is waited for."""
    run: Any = trainer
    strategy: Any = trainer.strategy
    callbacks, loggers, should_stop = run.callbacks, run.loggers, run.should_stop
    with ExitStack() as stack:
        if trainer.world_size > 1:
            stack.enter_context(_alone(strategy))
        run.callbacks, run.loggers = [], [dummy_logger(trainer) for _ in loggers]
        stack.enter_context(unlogged(module))
        try:
            yield
        finally:
            run.callbacks, run.loggers, run.should_stop = callbacks, loggers, should_stop


@contextmanager
def _alone(strategy: Any) -> Iterator[None]:
    """Run code as if there were one process. Code that exchanges tensors nevertheless raises instead of waiting for ever."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(torch.distributed, "is_initialized", lambda: False))
        for name in _COLLECTIVES:
            if hasattr(torch.distributed, name):
                stack.enter_context(patch.object(torch.distributed, name, _refusal(name)))
        # DDP prepares the exchange of gradients here, for which other ranks would have to run the same backward.
        stack.enter_context(patch.object(strategy, "pre_backward", ignore))
        yield


def _refusal(name: str) -> Callable[..., None]:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise CommunicationError(f"torch.distributed.{name}")

    return refuse


def package_of(trainer: Trainer) -> str:
    """`lightning.pytorch` or `pytorch_lightning`."""
    modules = [kind.__module__ for kind in type(trainer).__mro__ if kind.__name__ == "Trainer"]
    return next(package for package in DISTRIBUTIONS if any(name.startswith(package) for name in modules))


def dummy_logger(trainer: Trainer) -> Any:
    """A logger that does nothing."""
    return importlib.import_module(f"{package_of(trainer)}.loggers.logger").DummyLogger()
