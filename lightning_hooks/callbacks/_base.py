"""Base of the callbacks: joins a run with its participants, and passes the beginning and end of batches and steps on to it."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import override

from lightning_hooks.callbacks._checkpointed import CheckpointedCallback
from lightning_hooks.callbacks._checks import setting_of
from lightning_hooks.callbacks._lightning import refuse_old_trainer
from lightning_hooks.callbacks._ours import for_each_stage, our_callbacks, take_part_once
from lightning_hooks.callbacks._run import LightningRun, run_of
from lightning_hooks.callbacks._trainer import (
    all_callbacks,
    batch_number,
    current_step,
    ends_window,
    in_fit,
    is_log_step,
    is_running,
    loss_scale,
    warn_if_replaced,
)
from lightning_hooks.engine.participants.participant import Participant
from lightning_hooks.records.consumer import Publisher

if TYPE_CHECKING:
    from lightning_hooks.callbacks._lightning import LightningModule, Trainer


class HooksCallback(CheckpointedCallback):
    """Base of the callbacks: the life of their participants within a fit, or within a run of another stage.

    A subclass defines `_resolve`, `_lines`, `_build` and `_rules`, and may override `_check_resolved`, the methods up to
    `_after_run`, `_state` and `_load_state`.
    """

    def __init__(self) -> None:
        super().__init__()
        self._participants: list[Participant] = []  # the participants that the callback adds to the run
        self._publisher: Publisher | None = None  # passes step views to consumers; closed with the run

    def _build(self, trainer: Trainer, run: LightningRun, resolved: Any) -> Sequence[Participant]:
        """Create the participants; none if no rule matches anything. All checks that may raise come before any hook."""
        raise NotImplementedError

    def _end_step(self, trainer: Trainer, step: int) -> None:
        """Called when a training step ends; the hooks are already removed."""

    @property
    def _pending(self) -> bool:
        """Whether `_end_step` must be called at the end of the next step even if no participant acts in that step."""
        return False

    def _after_batch(self) -> None:
        """Called after a batch of any stage; the hooks are already removed."""

    def _after_run(self, trainer: Trainer, stage: str) -> None:
        """Called when a run of a stage other than `train` ends: one validation, for example."""

    def __getstate__(self) -> dict[str, Any]:
        """A copy or a pickle belongs to no run."""
        return {**self.__dict__, "_run": None, "_participants": [], "_publisher": None}

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Called before a run: drop what a failed run may have left.

        The callback removes itself from the list if a run of another Trainer uses it, or if the environment variable added it
        for another Trainer.
        """
        refuse_old_trainer(trainer)
        if self._is_in_use(trainer) or self not in our_callbacks(trainer):
            trainer.callbacks = [callback for callback in all_callbacks(trainer) if callback is not self]  # type: ignore[attr-defined]
            return
        take_part_once(self, trainer)
        with self._naming_origin():
            self._refuse_beside(our_callbacks(trainer))
        self._detach()
        self._forget_state(trainer)

    def _is_in_use(self, trainer: Trainer) -> bool:
        """Whether a run of another Trainer, which has not ended, uses the callback; if so, warn."""
        owner = None if self._run is None else self._run.trainer
        if owner is trainer or not is_running(owner):
            return False
        warnings.warn(
            f"{type(self).__name__} is in use by a run of another Trainer that has not ended, and does nothing in this one; "
            "give each Trainer a callback of its own",
            stacklevel=2,
        )
        return True

    @override
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Called when the model is on its device: resolve the rules, check them, and join the run."""
        self._detach()
        if self._acts_in_fit:
            self._attach(trainer, pl_module)

    def _attach(self, trainer: Trainer, pl_module: LightningModule) -> None:
        run = run_of(trainer, pl_module)
        participants = self._built(trainer, pl_module, run)
        if not participants:
            return
        # Set the run before it begins: if Ctrl-C arrives in between, `_detach` still leaves the run.
        self._run = run
        run.take_part(self, self._participants, self._leave)
        if "train" in self._stages:
            participants = [*self._skipped.start(trainer, run.hook_manager), *participants]
        # Lightning calls on_fit_start of callbacks in order, so participants join in the order of the callbacks.
        for participant in participants:
            participant.owner = type(self).__name__
            self._participants.append(participant)
            run.join(participant)

    def _built(self, trainer: Trainer, pl_module: LightningModule, run: LightningRun) -> list[Participant]:
        with self._naming_origin():
            setting = setting_of(trainer, pl_module)
            self._refuse_setting(setting)
            resolved = self._resolve(pl_module, trainer, run.earlier)
            run.earlier = self._check_resolved(resolved, setting, run.earlier)
            participants = list(self._build(trainer, run, resolved))
        if not participants:
            name = self._label or f"{type(self).__name__}: "
            warnings.warn(f"{name}no rule matches anything ({self._rules}); it does nothing in this run", stacklevel=2)
        return participants

    @override
    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Called before an epoch, when code often changes models: look for replaced modules at the first batch."""
        if self._run is not None:
            self._run.hook_manager.refresh.request()
            self._run.forget_replaced()

    @override
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Called before a batch: at the first batch of a step ask which participants act, then install the hooks."""
        if self._run is not None:
            warn_if_replaced(trainer, pl_module)
            step = current_step(trainer)
            # With automatic optimization, Lightning announces every backward in on_before_backward. A `loss.backward()` in the
            # training step of manual optimization is not announced.
            announced = pl_module.automatic_optimization and pl_module.trainer is trainer
            self._run.begin_batch(step, reporting=is_log_step(trainer, step), announced=announced)

    @override
    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        """Called before each backward of the loss: gradients are those of the loss from now on. Note the loss scale."""
        run = self._run
        if run is None:
            return
        run.hook_manager.backward_begins()
        if run.hook_manager.switch.is_on and run.has_first(self._participants):
            scale = loss_scale(trainer)
            if scale is not None:
                run.hook_manager.scaled_by(scale)

    @override
    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Called after each backward of the loss: until the next one, no gradient is one of the loss."""
        if self._run is not None:
            self._run.hook_manager.backward_ends()

    @override
    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        """Called with accumulated, unscaled, averaged gradients: read or change them."""
        if self._run is not None and self._run.hook_manager.switch.is_on:
            for participant in self._participants:
                self._run.hook_manager.before_step(participant, optimizer)

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Called after a batch: remove the hooks; after the last batch of a step, end the step."""
        run = self._run
        if run is None:
            return
        hook_manager = run.hook_manager
        hook_manager.end_batch()
        self._after_batch()
        if hook_manager.idle and not self._pending:
            return
        step = hook_manager.step
        if step is None or not ends_window(trainer):
            return
        self._end_step(trainer, step)
        if run.has_last(self._participants):
            hook_manager.end_step()

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Called after an epoch, also one that was cut short: remove the hooks, and drop a step that has not ended.

        Lightning clears the gradients of such a step before the first backward of the next epoch. A strategy that accumulates
        by itself keeps the gradients, so with it the step continues.
        """
        if self._run is not None:
            self._run.hook_manager.end_batch()
            if not trainer.strategy.handles_gradient_accumulation:
                self._run.hook_manager.end_step()

    def _start_run(self, stage: str, trainer: Trainer, pl_module: LightningModule) -> None:
        """Called before the run of a stage other than `train`, inside a fit or outside."""
        if self._run is not None:
            self._run.hook_manager.interrupt()
        elif not in_fit(trainer) and stage in self._stages:
            self._attach(trainer, pl_module)

    def _acts_in(self, stage: str, trainer: Trainer) -> bool:
        return self._run is not None and stage in self._stages and not trainer.sanity_checking

    def _start_batch(
        self, stage: str, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        if self._run is not None and self._acts_in(stage, trainer):
            self._run.begin_batch(batch_number(trainer, stage), stage=stage)

    def _end_batch(self, stage: str, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        if self._run is not None and self._acts_in(stage, trainer):
            self._run.hook_manager.end_batch()
            self._after_batch()

    def _end_run(self, stage: str, trainer: Trainer, pl_module: Any) -> None:
        if self._run is None or stage not in self._stages:
            return
        if not trainer.sanity_checking:
            self._after_run(trainer, stage)
        self._run.hook_manager.end_step(stage)
        if not in_fit(trainer):
            self._detach()

    @override
    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Called after the fit: end the run for all callbacks, unless `HooksGuard` has already done so."""
        if self._run is not None:
            self._run.end()

    @override
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Called when the run failed or was interrupted: remove all hooks."""
        self._leave(exception)

    @override
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Called last: remove all hooks, whichever other methods Lightning did not call."""
        self._leave()

    def _detach(self, error: BaseException | None = None) -> None:
        """Remove all hooks and close the consumers; a second call does nothing."""
        try:
            self._keep_state()
        finally:
            self._skipped.stop(self._hook_manager)
            run, participants, publisher = self._run, self._participants, self._publisher
            self._run, self._participants, self._publisher = None, [], None
            if run is not None:
                run.leave(participants)
            if publisher is not None:
                publisher.close(error)

    def _leave(self, error: BaseException | None = None) -> None:
        self._detach(error)
        # Lightning sets these bound methods of the model on every callback when a run begins. They keep the model alive.
        for name in ("log", "log_dict"):
            vars(self).pop(name, None)

    on_validation_start, on_test_start, on_predict_start = for_each_stage("_start_run")
    on_validation_batch_start, on_test_batch_start, on_predict_batch_start = for_each_stage("_start_batch")
    on_validation_batch_end, on_test_batch_end, on_predict_batch_end = for_each_stage("_end_batch")
    on_validation_end, on_test_end, on_predict_end = for_each_stage("_end_run")
