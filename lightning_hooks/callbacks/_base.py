"""Base of the callbacks: takes part in runs, and passes what Lightning calls on to the driver."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import override

from lightning_hooks.callbacks import _driver as driver
from lightning_hooks.callbacks._lightning import refuse_old_trainer
from lightning_hooks.callbacks._ours import OurCallback, for_each_stage, our_callbacks, take_part_once
from lightning_hooks.callbacks._run import LightningRun
from lightning_hooks.callbacks._saving import Saving, warn_of_damage
from lightning_hooks.callbacks._trainer import all_callbacks, batch_number, in_fit, is_running
from lightning_hooks.engine.assembly import Assembled, Contribution
from lightning_hooks.engine.participants.participant import Participant
from lightning_hooks.engine.running.hook_manager import HookManager
from lightning_hooks.records.consumer import Publisher

if TYPE_CHECKING:
    from lightning_hooks.callbacks._lightning import LightningModule, Trainer
    from lightning_hooks.callbacks._monitoring import MonitorOptions


class HooksCallback(OurCallback):
    """Base of the callbacks. A subclass declares what it brings into a run; the driver assembles the run and drives it.

    A subclass defines `_resolve`, `_lines`, `_contribute` and `_rules`, and may override the other methods up to `_load_state`.
    """

    _warns_if_idle = True
    """Whether to warn if the callback contributes nothing because no rule matches anything."""

    def __init__(self) -> None:
        super().__init__()
        self._current_run: LightningRun | None = None  # the run in which the callback takes part
        self._participants: list[Participant] = []  # the participants that the callback adds to the run
        self._publisher: Publisher | None = None  # passes step views to consumers; closed with the run
        self._saving = Saving(type(self))

    def _contribute(self, trainer: Trainer, run: LightningRun, resolved: Any) -> Contribution | None:
        """What the callback brings into a run that begins; None if no rule matches anything. No hook is registered yet."""
        raise NotImplementedError

    def _assembled(self, trainer: Trainer, run: LightningRun, made: Assembled) -> None:
        """Called when the run is assembled, before any hook is registered."""

    def _after_batch(self) -> None:
        """Called after a batch of any stage; the hooks are already removed."""

    def _after_run(self, trainer: Trainer, stage: str) -> None:
        """Called when a run of a stage other than `train` has ended and was published: one validation, for example."""

    def _monitor_options(self) -> MonitorOptions:
        """How a callback watches that has a `Monitoring`, by the present values of its options."""
        raise NotImplementedError

    def _state(self) -> dict[str, Any]:
        """What a checkpoint keeps of the fit under way; empty if there is none."""
        return {}

    def _load_state(self, state: dict[str, Any]) -> None:
        """Continue the fit under way from a checkpoint, in which the state is empty if there was no such callback."""

    def __getstate__(self) -> dict[str, Any]:
        """A copy or a pickle belongs to no run."""
        driver.flush(self._current_run)
        return {**self.__dict__, "_current_run": None, "_participants": [], "_publisher": None}

    @property
    def _hook_manager(self) -> HookManager | None:
        """The hook manager of the run in which the callback takes part; None outside a run."""
        return None if self._current_run is None else self._current_run.hook_manager

    @property
    def _fits(self) -> bool:
        """Whether it takes part in a fit."""
        return self._current_run is not None and self._current_run.is_fit

    def _warn_of_damage(self, damaged: Sequence[str]) -> None:
        warn_of_damage(self._label or f"{type(self).__name__}: ", damaged)

    def _saved_at(self, trainer: Trainer) -> str:
        """The key of this callback in a checkpoint among those of its class."""
        ours = [each for each in our_callbacks(trainer) if isinstance(each, HooksCallback)]
        same = [each for each in ours if each._saving.key == self._saving.key and each.prefix == self.prefix]
        return f"{self.prefix}{same.index(self)}"

    @override
    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Called for a checkpoint: save what continues from step to step."""
        state = self._state() if self._fits else {}
        self._saving.save(checkpoint, self._saved_at(trainer), state, self._hook_manager)

    @override
    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Called with a checkpoint, before or after the fit starts: continue from it."""
        at, warn = self._saved_at(trainer), self._warn_of_damage
        state = self._saving.load(checkpoint, at, trainer, self._hook_manager, warn)
        if self._current_run is None:
            self._saving.saved = state
        else:
            self._load_state(state)

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
        self._saving.forget(trainer)

    def _is_in_use(self, trainer: Trainer) -> bool:
        """Whether a run of another Trainer, which has not ended, uses the callback; if so, warn."""
        owner = None if self._current_run is None else self._current_run.trainer
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
        """Called when the model is on its device: the last callback of this package begins the run for all of them."""
        self._detach()
        if driver.is_last(trainer, self, our_callbacks(trainer)):
            driver.begin_run(trainer, pl_module, driver.acting(trainer))

    @override
    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Called before an epoch, when code often changes models: look for replaced modules at the first batch."""
        if self._current_run is not None:
            self._current_run.hook_manager.refresh.request()
            self._current_run.forget_replaced()

    @override
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Called before a batch: at the first batch of a step ask which participants act, then install the hooks."""
        if self._current_run is not None:
            driver.begin_batch(self._current_run, trainer, pl_module)

    @override
    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        """Called before each backward of the loss: measure the loss, and note the loss scale."""
        if self._current_run is not None and self._current_run.is_led_by(self):
            driver.before_backward(self._current_run, trainer, pl_module, loss)

    @override
    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Called after each backward of the loss: until the next one, no gradient is one of the loss."""
        if self._current_run is not None:
            self._current_run.hook_manager.backward_ends()

    @override
    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        """Called with accumulated, unscaled, averaged gradients: read or change them in the turn of this callback."""
        if self._current_run is not None:
            driver.before_optimizer_step(self._current_run, self, optimizer)

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Called after a batch: `HooksGuard`, which comes first, has removed the hooks and ended the step, if it is over."""
        if self._current_run is not None:
            self._current_run.end_batch(trainer)
            self._after_batch()

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Called after an epoch, also one that was cut short: remove the hooks, and write its last steps now."""
        if self._current_run is not None:
            driver.end_epoch(self._current_run, trainer)
            driver.flush(self._current_run)

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Called after the last batch: write the last step."""
        driver.flush(self._current_run)

    def _start_run(self, stage: str, trainer: Trainer, pl_module: LightningModule) -> None:
        """Called before the run of a stage other than `train`, inside a fit or outside."""
        driver.flush(self._current_run)  # Write the finished training steps before those of this stage.
        if self._current_run is not None:
            self._current_run.hook_manager.interrupt()
            self._current_run.begin_stage(stage)
        elif not in_fit(trainer) and driver.is_last(trainer, self, acting := driver.acting(trainer, stage)):
            driver.begin_run(trainer, pl_module, acting)
            for run in {id(each._current_run): each._current_run for each in acting}.values():
                if run is not None:
                    run.begin_stage(stage)

    def _acts_in(self, stage: str, trainer: Trainer) -> bool:
        return self._current_run is not None and stage in self._stages and not trainer.sanity_checking

    def _start_batch(
        self, stage: str, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        if self._current_run is not None and self._acts_in(stage, trainer):
            self._current_run.begin_batch(batch_number(trainer, stage), stage=stage)

    def _end_batch(self, stage: str, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        if self._current_run is not None and self._acts_in(stage, trainer):
            self._current_run.hook_manager.end_batch()
            self._after_batch()

    def _end_run(self, stage: str, trainer: Trainer, pl_module: Any) -> None:
        if self._current_run is None or stage not in self._stages:
            return
        if not trainer.sanity_checking:
            driver.end_stage(self._current_run, trainer, stage)
            self._after_run(trainer, stage)
        self._current_run.hook_manager.end_step(stage)
        if not in_fit(trainer):
            self._detach()

    @override
    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Called after the fit: end the run for all callbacks, unless `HooksGuard` has already done so."""
        if self._current_run is not None:
            self._current_run.end()

    @override
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Called when the run failed or was interrupted: write the last step that ended, remove all hooks."""
        try:
            driver.flush(self._current_run)
        # A device may raise here. Only warn, so that the user sees the exception of the fit.
        except Exception as error:
            warnings.warn(f"the last step is not written: {type(error).__name__}: {error}", stacklevel=2)
        self._leave(exception)

    @override
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Called last: remove all hooks, whichever other methods Lightning did not call."""
        self._leave()

    def _detach(self, error: BaseException | None = None) -> None:
        """Remove all hooks and close the consumers; a second call does nothing."""
        try:
            # Call `_state` after every run, also where its result is not used: it publishes the step views that are pending.
            state = self._state()
            if self._fits:
                self._saving.last = state
        finally:
            self._saving.skipped.stop(self._hook_manager)
            run, participants, publisher = self._current_run, self._participants, self._publisher
            self._current_run, self._participants, self._publisher = None, [], None
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
