"""Base of the callbacks: takes part in runs, and passes what Lightning calls on to the driver and to a job."""

from __future__ import annotations

import os
import warnings
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.optim import Optimizer
from typing_extensions import override

from lightning_hooks.callbacks import _driver as driver
from lightning_hooks.callbacks._checks import Earlier, Setting
from lightning_hooks.callbacks._job import Job
from lightning_hooks.callbacks._lightning import Callback, refuse_old_trainer
from lightning_hooks.callbacks._loop_seam import ServesLoops
from lightning_hooks.callbacks._ours import is_in_use, our_callbacks, take_part_once
from lightning_hooks.callbacks._run import LightningRun
from lightning_hooks.callbacks._saving import Saving
from lightning_hooks.callbacks._trainer import all_callbacks, batch_number, in_fit
from lightning_hooks.callbacks._trainer_type import undeclared
from lightning_hooks.engine.inspecting.match_report import Match
from lightning_hooks.engine.participants.participant import Participant
from lightning_hooks.engine.running.hook_manager import HookManager
from lightning_hooks.rules.prefix import ROOT

if TYPE_CHECKING:
    from lightning_hooks.callbacks._lightning import LightningModule, Trainer


def _for_each_stage(method: str) -> tuple[Any, ...]:
    """Lightning's hooks that call a method with each stage other than `train`."""

    def hook_of(stage: str) -> Any:
        def hook(self: HooksCallback, trainer: Trainer, pl_module: LightningModule, *args: Any, **kwargs: Any) -> None:
            getattr(self, method)(stage, trainer, pl_module, *args, **kwargs)

        return hook

    return tuple(map(hook_of, ("validate", "test", "predict")))


class HooksCallback(ServesLoops, Callback):
    """Base of the callbacks. A subclass has options and a job; the driver assembles the run and drives it.

    Args:
        job: what the callback does in runs.

    Attributes:
        origin: the file and the key from which the callback was read, for messages; empty if it was created in Python.
        environment: a mark that the callbacks of one Trainer from the environment variable share; None for other callbacks.
        loggers: which loggers of the Trainer are written to.
        logdir: the folder for an event file of this package, if none of the loggers is a TensorBoard; None for none.
        prefix: the text before every tag that a logger shows.
        stages: the stages in which the callback acts.
    """

    origin: str = ""
    environment: str | None = None
    loggers: Sequence[str] = ("all",)
    logdir: str | os.PathLike[str] | None = None
    prefix: str = ROOT
    stages: Collection[str] = ("train",)

    def __init__(self, job: Job[Any, Any]) -> None:
        super().__init__()
        self._job = job
        self._current_run: LightningRun | None = None  # the run in which the callback takes part
        self._participants: list[Participant] = []  # the participants that the callback adds to the run
        self._saving = Saving(type(self))

    def match(self, model: nn.Module) -> Match:
        """The dry run: what the rules match in a model.

        Args:
            model: the root module.

        Raises:
            RuleError: the errors that a fit would raise.
        """
        job = self._job
        with job.naming_origin():
            resolved = job.resolve(model)
            job.check(resolved, Setting(), Earlier())
            return Match(job.lines(resolved), job.left_out(model, resolved))

    def __getstate__(self) -> dict[str, Any]:
        """A copy or a pickle belongs to no run."""
        driver.flush(self._current_run)
        return {**self.__dict__, "_job": self._job.for_copy(), "_current_run": None, "_loop": None, "_participants": []}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """The copy owns its job."""
        self.__dict__.update(state)
        self._job.owner = self

    @property
    def _hook_manager(self) -> HookManager | None:
        """The hook manager of the run in which the callback takes part; None outside a run."""
        return None if self._current_run is None else self._current_run.hook_manager

    @property
    def _fits(self) -> bool:
        """Whether it takes part in a fit."""
        return self._current_run is not None and self._current_run.is_fit

    def _saved_at(self, trainer: Trainer) -> str:
        """The key of this callback in a checkpoint among those of its class."""
        same = [each for each in our_callbacks(trainer) if each._saving.key == self._saving.key and each.prefix == self.prefix]
        return f"{self.prefix}{same.index(self)}"

    @override
    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Called for a checkpoint: save what continues from step to step."""
        if self._fits:
            self._job.before_checkpoint()
        state = self._job.state() if self._fits else {}
        self._saving.save(checkpoint, self._saved_at(trainer), state, self._hook_manager)

    @override
    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Called with a checkpoint, before or after the fit starts: continue from it."""
        if in_fit(trainer):
            with self._job.starting_again("the count of the steps that the loss scaler skipped"):
                self._saving.skipped.load(checkpoint, self._hook_manager)
        self._saving.saved = {}
        with self._job.starting_again():
            state = self._saving.read(checkpoint, self._saved_at(trainer))
            if self._current_run is None:
                self._saving.saved = state
            else:
                self._job.load_state(state)

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Called before a run: drop what a failed run may have left.

        The callback removes itself from the list if a run of another Trainer uses it, or if the environment variable added it
        for another Trainer.
        """
        refuse_old_trainer(trainer)
        if is_in_use(self, trainer) or self not in our_callbacks(trainer):
            undeclared(trainer).callbacks = [each for each in all_callbacks(trainer) if each is not self]
            return
        take_part_once(self, trainer)
        with self._job.naming_origin():
            self._job.refuse_beside(our_callbacks(trainer))
        self._detach()
        self._saving.forget(trainer)

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
            self._current_run.facts.forget_replaced()

    @override
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Called before a batch: at the first batch of a step ask which participants act, then install the hooks."""
        if self._current_run is not None:
            driver.begin_batch(self._current_run, trainer, pl_module)
            self._job.begin_batch(batch, batch_idx)

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
            self._job.after_backward()

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
            self._job.end_batch(trainer, "train")

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Called after an epoch, also one that was cut short: remove the hooks, and write its last steps now."""
        if self._current_run is not None:
            driver.end_epoch(self._current_run, trainer)
            driver.flush(self._current_run)
            self._job.end_epoch(trainer)

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Called after the last batch: write the last step."""
        driver.flush(self._current_run)
        self._job.end_training(trainer)

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
        return self._current_run is not None and stage in self._job.stages and not trainer.sanity_checking

    def _start_batch(
        self, stage: str, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        if self._current_run is not None and self._acts_in(stage, trainer):
            self._current_run.begin_batch(batch_number(trainer, stage), stage=stage)

    def _end_batch(self, stage: str, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        if self._current_run is not None and self._acts_in(stage, trainer):
            self._current_run.hook_manager.end_batch()
            self._job.end_batch(trainer, stage)

    def _end_run(self, stage: str, trainer: Trainer, pl_module: Any) -> None:
        if self._current_run is None or stage not in self._job.stages:
            return
        if not trainer.sanity_checking:
            driver.end_stage(self._current_run, trainer, stage)
            self._job.end_stage(trainer, stage)
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
        if self._current_run is not None:
            self._job.fail(exception)
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
            # Ask for the state after every run, also where it is not saved: the job publishes the views that are pending.
            state = self._job.state()
            if self._fits:
                self._saving.last = state
            self._job.before_leaving(error)
        finally:
            self._saving.skipped.stop(self._hook_manager)
            run, participants = self._current_run, self._participants
            self._current_run, self._participants = None, []
            try:
                if run is not None:
                    run.leave(participants)
            finally:
                self._job.close(error)

    def _leave(self, error: BaseException | None = None) -> None:
        self._detach(error)
        # Lightning sets these bound methods of the model on every callback when a run begins. They keep the model alive.
        for name in ("log", "log_dict"):
            vars(self).pop(name, None)

    on_validation_start, on_test_start, on_predict_start = _for_each_stage("_start_run")
    on_validation_batch_start, on_test_batch_start, on_predict_batch_start = _for_each_stage("_start_batch")
    on_validation_batch_end, on_test_batch_end, on_predict_batch_end = _for_each_stage("_end_batch")
    on_validation_end, on_test_end, on_predict_end = _for_each_stage("_end_run")
