"""Base of the callbacks: joins the hook manager of the run, says when batches and steps begin and end, and leaves."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import override

from lightning_hooks.callbacks._checks import setting_of
from lightning_hooks.callbacks._lightning import refuse_old_trainer
from lightning_hooks.callbacks._ours import OurCallback, for_each_stage, our_callbacks, take_part_once
from lightning_hooks.callbacks._run import LightningRun, run_of
from lightning_hooks.callbacks._trainer import (
    SkippedSteps,
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
from lightning_hooks.errors import RuleError, UnsupportedError
from lightning_hooks.records.consumer import Publisher
from lightning_hooks.saved_state import read_mapping, starting_again

if TYPE_CHECKING:
    from lightning_hooks.callbacks._lightning import LightningModule, Trainer
    from lightning_hooks.engine.running.hook_manager import HookManager


class HooksCallback(OurCallback):
    """Base of the callbacks: the life of their participants within a fit, or within a run of another stage.

    A subclass has `_resolve`, `_lines`, `_build` and `_rules`, and overrides `_check_resolved` and the methods up to
    `_load_state` where it needs to. State goes through `on_save_checkpoint`, not through `state_dict`: Lightning refuses two
    callbacks with the same `state_key`, and with a key that contains the rules a changed rule would lose the state of all
    others.
    """

    def __init__(self) -> None:
        super().__init__()
        self._run: LightningRun | None = None  # the run in which the callback takes part
        self._participants: list[Participant] = []  # what the callback adds to the run
        self._publisher: Publisher | None = None  # gives what is measured to loggers; closed with the run
        self._skipped = SkippedSteps()
        self._saved: dict[str, Any] = {}  # by a checkpoint, until the run begins
        self._last: dict[str, Any] = {}  # of the last fit, for a checkpoint that is saved after it

    def _build(self, trainer: Trainer, run: LightningRun, resolved: Any) -> Sequence[Participant]:
        """The participants; empty if no rule matches anything. It raises before anything is hooked."""
        raise NotImplementedError

    def _end_step(self, trainer: Trainer, step: int) -> None:
        """Called when a step of training ends; the hooks are off the model already."""

    @property
    def _pending(self) -> bool:
        """Whether a step that has ended is still to be finished when the next one ends, even if no participant acts in that."""
        return False

    def _after_batch(self) -> None:
        """Called after a batch of any stage, without hooks."""

    def _after_run(self, trainer: Trainer, stage: str) -> None:
        """Called when a run of a stage other than `train` ends: one validation, for example."""

    def _state(self) -> dict[str, Any]:
        """What a checkpoint keeps of the fit under way; empty if there is none."""
        return {}

    def _load_state(self, state: dict[str, Any]) -> None:
        """Continue the fit under way from a checkpoint, in which the state is empty if there was no such callback."""

    @property
    def _hook_manager(self) -> HookManager | None:
        """That of the run in which it takes part."""
        return None if self._run is None else self._run.hook_manager

    @property
    def _fits(self) -> bool:
        """Whether it takes part in a fit."""
        return self._run is not None and self._run.is_fit

    def __getstate__(self) -> dict[str, Any]:
        """A copy or a pickle is not attached to anything."""
        return {**self.__dict__, "_run": None, "_participants": [], "_publisher": None}

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Called before a run: drop what a failed run may have left, or skip this run, which other callbacks serve."""
        refuse_old_trainer(trainer)
        if self._is_in_use(trainer) or self not in our_callbacks(trainer):
            trainer.callbacks = [callback for callback in all_callbacks(trainer) if callback is not self]  # type: ignore[attr-defined]
            return
        take_part_once(self, trainer)
        self._detach()
        self._saved = {}  # checkpoints are read after this; a test, say, need not have taken what it read
        if in_fit(trainer):  # after another run a checkpoint has the state of the fit before it, as that of the optimizers
            self._last = {}
            self._skipped.forget()

    def _is_in_use(self, trainer: Trainer) -> bool:
        """Whether a run of another trainer uses the callback, within which a run of this one began; then warn."""
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
        """Called when the model is on its device: resolve the rules, all or nothing."""
        self._detach()
        if self._acts_in_fit:
            self._attach(trainer, pl_module)

    def _attach(self, trainer: Trainer, pl_module: LightningModule) -> None:
        run = run_of(trainer, pl_module)
        participants = self._built(trainer, pl_module, run)
        if not participants:
            return
        # Note the run before it begins: if Ctrl-C arrives in between, `_detach` ends what has begun.
        self._run = run
        run.take_part(self, self._participants, self._leave)
        if "train" in self._stages:
            participants = [*self._skipped.start(trainer, run.hook_manager), *participants]
        for participant in participants:  # Lightning starts its callbacks in their order
            participant.owner = type(self).__name__
            self._participants.append(participant)
            run.join(participant)

    def _built(self, trainer: Trainer, pl_module: LightningModule, run: LightningRun) -> list[Participant]:
        try:
            setting = setting_of(trainer, pl_module)
            self._refuse_setting(setting)
            resolved = self._resolve(pl_module, trainer, run.earlier)
            run.earlier = self._check_resolved(resolved, setting, run.earlier)
            participants = list(self._build(trainer, run, resolved))
        except (RuleError, UnsupportedError) as error:
            if str(error).startswith(self._label):
                raise
            raise type(error)(f"{self._label}{error}") from error
        if not participants:
            name = self._label or f"{type(self).__name__}: "
            warnings.warn(f"{name}no rule matches anything ({self._rules}); it does nothing in this run", stacklevel=2)
        return participants

    @override
    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Called before an epoch, which is when models are changed: compare the model with the plan at the first batch."""
        if self._run is not None:
            self._run.hook_manager.refresh.request()
            self._run.forget_replaced()

    @override
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Called before a batch: install the hooks and open the switch; at the first batch of a step, ask who acts."""
        if self._run is not None:
            warn_if_replaced(trainer, pl_module)
            step = current_step(trainer)
            # With manual optimization a training step may also call `loss.backward()`, of which Lightning tells nobody.
            announced = pl_module.automatic_optimization and pl_module.trainer is trainer
            self._run.begin_batch(step, reporting=is_log_step(trainer, step), announced=announced)

    @override
    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        """Called before each backward: gradients count from now on; note the scale by which they are multiplied."""
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
        """Called after each backward: until the next one, no gradient is one of the loss."""
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
        """Called after a batch: close the switch, and at the last batch of a step end it."""
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
        """Called after an epoch, also one that was cut short: close the switch, and forget a step that has not ended.

        Lightning clears the gradients of such a step before the first backward of the next epoch; a strategy that accumulates
        by itself keeps them.
        """
        if self._run is not None:
            self._run.hook_manager.end_batch()
            if not trainer.strategy.handles_gradient_accumulation:
                self._run.hook_manager.end_step()

    def _start_run(self, stage: str, trainer: Trainer, pl_module: LightningModule) -> None:
        """Called before the run of a stage other than `train`; a validation may be part of a fit, or stand alone."""
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
        """Called after the fit: end the run for all, unless `HooksGuard` has done so."""
        if self._run is not None:
            self._run.end()

    @override
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Called when the run failed or was interrupted: remove all hooks."""
        self._leave(exception)

    @override
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Called last: remove all hooks, whatever was skipped."""
        self._leave()

    @override
    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Called for a checkpoint: save what continues from step to step."""
        self._skipped.save(checkpoint, self._hook_manager)
        state = (self._state() if self._fits else None) or self._last or self._saved
        if state:
            checkpoint.setdefault(self._saved_as, {})[self._saved_at(trainer)] = state

    @override
    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Called with a checkpoint, before or after the fit starts: continue from it."""
        if in_fit(trainer):
            self._warn_of_damage(self._skipped.load(checkpoint, self._hook_manager))
        state: dict[str, Any] = {}
        damaged: list[str] = []
        with starting_again(damaged):
            saved, at = read_mapping(checkpoint.get(self._saved_as, {}), self._saved_as), self._saved_at(trainer)
            state = read_mapping(saved.get(at, {}), f"{self._saved_as}[{at!r}]")
        self._warn_of_damage(damaged)
        if self._run is None:
            self._saved = state
        else:
            self._load_state(state)

    def _warn_of_damage(self, damaged: Sequence[str]) -> None:
        """Warn once of what is damaged in a checkpoint; those objects have started again."""
        if damaged:
            name = self._label or f"{type(self).__name__}: "
            warnings.warn(
                f"{name}the checkpoint is damaged; what is damaged starts again, and all else continues: {'; '.join(damaged)}",
                stacklevel=2,
            )

    @property
    def _saved_as(self) -> str:
        """The class of this package, of subclasses too."""
        return next(f"lightning_hooks.{k.__name__}" for k in type(self).__mro__ if k.__module__.startswith("lightning_hooks."))

    def _saved_at(self, trainer: Trainer) -> str:
        """The key of this callback in a checkpoint among those of its class."""
        ours = [callback for callback in our_callbacks(trainer) if isinstance(callback, HooksCallback)]
        same = [each for each in ours if each._saved_as == self._saved_as and each.prefix == self.prefix]
        return f"{self.prefix}{same.index(self)}"

    def _detach(self, error: BaseException | None = None) -> None:
        """Remove all hooks and close the consumers; a second call does nothing."""
        try:
            state = self._state()  # in every run: it finishes what is pending
            if self._fits:
                self._last = state
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
        # Bound methods of the model, which Lightning gives every callback when a run begins.
        for name in ("log", "log_dict"):
            vars(self).pop(name, None)

    on_validation_start, on_test_start, on_predict_start = for_each_stage("_start_run")
    on_validation_batch_start, on_test_batch_start, on_predict_batch_start = for_each_stage("_start_batch")
    on_validation_batch_end, on_test_batch_end, on_predict_batch_end = for_each_stage("_end_batch")
    on_validation_end, on_test_end, on_predict_end = for_each_stage("_end_run")
