"""The training of a Trainer: the step of its module, which callbacks, loggers and other ranks do not notice."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import override

from lightning_hooks.callbacks._lightning import DISTRIBUTIONS
from lightning_hooks.callbacks._record_context import context_of
from lightning_hooks.callbacks._trainer import loss_divisor
from lightning_hooks.callbacks._training_step import call_training_step, ignore, loss_of, takes_iterator, unlogged
from lightning_hooks.engine.rerun.training import Training
from lightning_hooks.errors import shown

if TYPE_CHECKING:
    from lightning_hooks.callbacks._lightning import LightningModule, Trainer


class TrainerTraining(Training):
    """The `training_step` of a LightningModule in a fit, with the precision, the clipping and the scaler of its Trainer.

    In `quiet` the Trainer has no callbacks, and its loggers and `self.log` do nothing.

    Args:
        trainer: of the fit.
        module: whose step is run.
        accumulates: whether the loss is divided by the number of batches of an optimizer's step, as Lightning divides it;
            otherwise each batch is a step.
    """

    def __init__(self, trainer: Trainer, module: LightningModule, *, accumulates: bool = False) -> None:
        super().__init__(module)
        self._trainer, self._module, self._accumulates = trainer, module, accumulates
        self.precision = "float32" if trainer.precision == "32-true" else str(trainer.precision)
        self.is_manual = not module.automatic_optimization
        self.accumulates = None if self.is_manual else trainer.accumulate_grad_batches
        self.divides = not self.is_manual
        self.rank, self.world_size = trainer.global_rank, trainer.world_size

    @property
    @override
    def optimizers(self) -> list[Optimizer]:
        optimizers = [each for each in self._trainer.optimizers if isinstance(each, Optimizer) and each.param_groups]
        # Lightning has an optimizer of its own for a module without one, which holds a parameter of no model.
        return [each for each in optimizers if type(each).__name__ != "_MockOptimizer"]

    @property
    @override
    def scaler(self) -> Any:
        return getattr(self._trainer.precision_plugin, "scaler", None)

    @property
    @override
    def holders(self) -> Iterable[Any]:
        return [*(each.scheduler for each in self._trainer.lr_scheduler_configs), self.scaler]

    @override
    def refusal(self) -> str:
        if takes_iterator(self.model):
            return "the training step takes its batches from an iterator"
        kinds = {kind.__name__ for kind in type(self._trainer.strategy).__mro__}
        if kinds & {"SingleDeviceStrategy", "DDPStrategy"}:
            return ""
        # A model whose parts are on several devices needs all processes for each step.
        return f"with {type(self._trainer.strategy).__name__} one process cannot run it alone"

    @override
    def facts(self) -> Mapping[str, Any]:
        return context_of(self._trainer, self._module)

    @override
    def train(self, batch: Any, batch_idx: int) -> Tensor | None:
        module, trainer = self._module, self._trainer
        module.on_train_batch_start(batch, batch_idx)
        if self.is_manual:
            with trainer.precision_plugin.train_step_context():
                output = loss_of(call_training_step(module, batch, batch_idx))
            return output if isinstance(output, Tensor) else None
        optimizers = self.optimizers
        losses: list[Tensor | None] = [None]

        def closure() -> Tensor | None:
            loss = losses[0] = self._loss_of(batch, batch_idx)
            if optimizers:
                module.optimizer_zero_grad(trainer.current_epoch, batch_idx, optimizers[0])
            if loss is not None and loss.requires_grad:
                trainer.strategy.backward(loss, optimizers[0] if optimizers else None)
            return loss

        if not optimizers:
            closure()
        else:
            optimizer = module.optimizers()
            first = optimizer[0] if isinstance(optimizer, list) else optimizer
            module.optimizer_step(trainer.current_epoch, batch_idx, first, closure)
        return losses[0]

    @override
    def differentiate(self, batch: Any, batch_idx: int, updates: int = 0) -> Tensor | None:
        if self.is_manual:
            with self._without_further_updates(updates), self._trainer.precision_plugin.train_step_context():
                call_training_step(self._module, batch, batch_idx)
            return None
        loss = self._loss_of(batch, batch_idx)
        if loss is not None:
            self._trainer.strategy.backward(loss, None)
        return loss

    @override
    def forward_context(self) -> AbstractContextManager[Any]:
        context: AbstractContextManager[Any] = self._trainer.precision_plugin.forward_context()
        return context

    @contextmanager
    @override
    def quiet(self) -> Iterator[None]:
        run: Any = self._trainer
        callbacks, loggers, should_stop = run.callbacks, run.loggers, run.should_stop
        with ExitStack() as stack:
            stack.enter_context(super().quiet())
            if self.world_size > 1:
                # DDP prepares the exchange of gradients here, for which other ranks would have to run the same backward.
                stack.enter_context(patch.object(run.strategy, "pre_backward", ignore))
            run.callbacks, run.loggers = [], [dummy_logger(run) for _ in loggers]
            stack.enter_context(unlogged(self.model))
            try:
                yield
            finally:
                run.callbacks, run.loggers, run.should_stop = callbacks, loggers, should_stop

    def _loss_of(self, batch: Any, batch_idx: int) -> Tensor | None:
        with self._trainer.precision_plugin.train_step_context():
            loss = loss_of(call_training_step(self._module, batch, batch_idx))
        if loss is None:
            return None
        if not isinstance(loss, Tensor):
            raise TypeError(f"training_step must return a tensor, a mapping with the loss, or None, got {shown(loss)}")
        return loss / loss_divisor(self._trainer, self._module) if self._accumulates else loss

    @contextmanager
    def _without_further_updates(self, updates: int) -> Iterator[None]:
        """No optimizer steps in the block. The updates that have happened do nothing, and the next one ends the block."""
        left = iter(range(updates))

        def stop(*args: Any, **kwargs: Any) -> None:
            if next(left, None) is None:
                raise _NextUpdate

        with ExitStack() as stack:
            strategy: Any = self._trainer.strategy
            for optimizer in strategy._lightning_optimizers:
                stack.enter_context(patch.object(optimizer, "step", stop))
            try:
                yield
            except _NextUpdate:
                return


class _NextUpdate(Exception):
    """An optimizer is about to step in a batch that is run again, so all gradients of the batch exist."""


def package_of(trainer: Trainer) -> str:
    """`lightning.pytorch` or `pytorch_lightning`."""
    modules = [kind.__module__ for kind in type(trainer).__mro__ if kind.__name__ == "Trainer"]
    return next(package for package in DISTRIBUTIONS if any(name.startswith(package) for name in modules))


def dummy_logger(trainer: Trainer) -> Any:
    """A logger that does nothing."""
    return importlib.import_module(f"{package_of(trainer)}.loggers.logger").DummyLogger()
