"""The base of callbacks that watch: their producers in a run of a Trainer, and when steps end and are published."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import override

from lightning_hooks.callbacks._base import HooksCallback
from lightning_hooks.callbacks._run_context import TrainerContext
from lightning_hooks.callbacks._trainer import current_step, loss_divisor
from lightning_hooks.engine.watching.producer import Producer

if TYPE_CHECKING:
    from lightning_hooks.callbacks._lightning import LightningModule, Trainer


class WatchingCallback(HooksCallback):
    """A callback whose participants are observers. A subclass builds `_producers`, one for each stage, when a run begins."""

    def __init__(self) -> None:
        super().__init__()
        self._producers: dict[str, Producer] = {}  # the producer of each stage, during a run
        self._context: TrainerContext | None = None  # what the consumers are given; None without consumers

    def __getstate__(self) -> dict[str, Any]:
        """A copy or a pickle is not attached to anything."""
        self._flush()
        return {**super().__getstate__(), "_producers": {}, "_context": None}

    @property
    def _trained(self) -> Producer | None:
        """The producer of training steps, or None."""
        return self._producers.get("train")

    def _after_step(self, producer: Producer) -> None:
        """Called when a training step has ended and was perhaps published."""

    def _write_page(self, trainer: Trainer, producer: Producer | None) -> None:
        """Called when a step or another stage has ended, outside the time of the monitor."""

    @property
    @override
    def _pending(self) -> bool:
        requested = self._context is not None and self._context.has_requests
        return requested or (self._trained is not None and self._trained.is_pending)

    @override
    def _end_step(self, trainer: Trainer, step: int) -> None:
        producer, hook_manager = self._trained, self._hook_manager
        if producer is None or hook_manager is None:
            return
        observer = producer.observer
        acts = not observer.stopped and hook_manager.acts(observer)
        if acts or producer.is_pending:
            with producer.guard():
                if not acts:
                    producer.agree()
                else:
                    producer.end(step, hook_manager.take_reports())
                    observer.note_uncalled(hook_manager.called)
                self._after_step(producer)
            self._write_page(trainer, producer)
        self._fulfil_requests(trainer)

    @override
    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        """Called before each backward: measure the loss."""
        super().on_before_backward(trainer, pl_module, loss)
        producer, hook_manager = self._trained, self._hook_manager
        if producer is not None and hook_manager is not None and hook_manager.switch.is_on:
            if hook_manager.acts(producer.observer):
                producer.observer.note_loss(loss, loss_divisor(trainer, pl_module))

    @override
    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        """Called with accumulated, unscaled, averaged gradients: read them, and note the facts of the optimizers."""
        super().on_before_optimizer_step(trainer, pl_module, optimizer)
        producer, run = self._trained, self._run
        if producer is not None and run is not None and run.hook_manager.acts(producer.observer):
            with producer.guard():
                run.note_facts()

    def _fulfil_requests(self, trainer: Trainer) -> None:
        """Do what consumers have requested. Call it only where all ranks have published the same views."""
        if self._context is not None and self._context.has_requests:
            if (steps := self._context.take_focus()) and self._trained is not None:
                self._trained.observer.focus(steps)
            self._context.fulfil(trainer)

    def _flush(self) -> None:
        """Publish the finished steps, waiting for tables that are still being copied from a device."""
        producer = self._trained
        if producer is not None and producer.is_pending:
            with producer.guard():
                producer.publish_pending()

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Called after an epoch: write its last steps now, because the next batch may begin much later."""
        super().on_train_epoch_end(trainer, pl_module)
        self._flush()
        self._fulfil_requests(trainer)

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Called after the last batch: write the last step."""
        self._flush()
        self._write_page(trainer, self._trained)
        self._fulfil_requests(trainer)

    @override
    def _start_run(self, stage: str, trainer: Trainer, pl_module: LightningModule) -> None:
        self._flush()  # Write the finished training steps before those of this stage.
        super()._start_run(stage, trainer, pl_module)

    @override
    def _detach(self, error: BaseException | None = None) -> None:
        try:
            super()._detach(error)
        finally:
            self._producers, self._context = {}, None

    @override
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Called when the fit failed or was interrupted: write the last step that ended, remove all hooks."""
        try:
            self._flush()
        # A device may raise here. Only warn, so that the user sees the exception of the fit.
        except Exception as error:
            warnings.warn(f"the last step is not written: {type(error).__name__}: {error}", stacklevel=2)
        super().on_exception(trainer, pl_module, exception)

    @override
    def _after_run(self, trainer: Trainer, stage: str) -> None:
        producer = self._producers.get(stage)
        if producer is None or producer.observer.stopped:
            return
        with producer.guard():
            try:
                producer.end(current_step(trainer), {})
            finally:
                # The next run of this stage begins with an empty table.
                producer.observer.table.clear()
        # If the monitor also watches training, a training step writes the page, with more rows.
        if self._trained is None:
            self._write_page(trainer, producer)
        self._fulfil_requests(trainer)
