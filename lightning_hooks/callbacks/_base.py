"""Base of the callbacks: joins the hook manager of the run, says when batches and steps begin and end, and leaves."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import override

from lightning_hooks.callbacks._lightning import Callback, refuse_old_trainer
from lightning_hooks.callbacks._run import WrappedHook, begin_run, hook_manager_of, owner_of
from lightning_hooks.callbacks._trainer import (
    SkippedSteps,
    all_callbacks,
    batch_number,
    current_step,
    ends_window,
    has_scaler,
    in_fit,
    is_log_step,
    is_running,
    loss_scale,
)
from lightning_hooks.engine.hook_manager import HookManager
from lightning_hooks.engine.participant import Participant
from lightning_hooks.engine.plan.match_report import Match
from lightning_hooks.errors import RuleError, UnsupportedError

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer


class HooksCallback(Callback):
    """Base of the callbacks: the life of their participants within a fit, or within a run of another stage.

    A subclass has `_build`, and overrides what it needs of the methods up to `_load_state`. State goes through
    `on_save_checkpoint`, not through `state_dict`: Lightning refuses two callbacks with the same `state_key`, and with a key
    that contains the rules a changed rule would lose the state of all others.
    """

    origin: str = ""
    """The file and the key in it that this one was read from, for messages; empty for one made in Python."""
    environment: str | None = None
    """A mark that the callbacks of one Trainer from the environment variable share; None for others."""

    def __init__(self) -> None:
        self._hook_manager: HookManager | None = None
        self._participants: list[Participant] = []
        self._skipped = SkippedSteps()
        self._is_scaled = False  # whether the loss is
        self._saved: dict[str, Any] = {}  # by a checkpoint, until the fit begins
        self._last: dict[str, Any] = {}  # of the last fit, for a checkpoint that is saved after it

    @property
    def _stages(self) -> Collection[str]:
        """The stages in which it acts: of `train`, `validate`, `test`, `predict`."""
        return ("train",)

    def match(self, model: LightningModule) -> Match:
        """What the rules match in a model, without a run."""
        raise NotImplementedError

    def _build(self, trainer: Trainer, pl_module: LightningModule, hook_manager: HookManager) -> Sequence[Participant]:
        """Resolve the rules; raises before anything is hooked. Empty if no rule matches anything."""
        raise NotImplementedError

    @property
    def _rules(self) -> str:
        """The rules by the names that messages use: `watch[0], watch[1]`."""
        raise NotImplementedError

    def _end_step(self, trainer: Trainer, step: int) -> None:
        """Called when a step of training ends, before its hooks may go."""

    @property
    def _pending(self) -> bool:
        """Whether a step that has ended is still to be finished when the next one ends, even if no participant acts in that."""
        return False

    def _after_batch(self, trainer: Trainer, stage: str, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Called after a batch of any stage, without hooks."""

    def _after_run(self, trainer: Trainer, stage: str) -> None:
        """Called when a run of a stage other than `train` ends: one validation, for example."""

    @property
    def _wants_final(self) -> bool:
        """Whether a participant reads gradients in the phase `final`."""
        return False

    def _state(self) -> dict[str, Any]:
        """What a checkpoint keeps of the fit under way; empty if there is none."""
        return {}

    def _load_state(self, state: dict[str, Any]) -> None:
        """Continue the fit under way from a checkpoint, in which the state is empty if there was no such callback."""

    def __getstate__(self) -> dict[str, Any]:
        """A copy or a pickle is not attached to anything."""
        return {**self.__dict__, "_hook_manager": None, "_participants": []}

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Called before a run: drop what a failed run may have left, or skip this run, which other callbacks serve."""
        refuse_old_trainer(trainer)
        if self not in our_callbacks(trainer) or self._is_busy_elsewhere(trainer):
            trainer.callbacks = [callback for callback in all_callbacks(trainer) if callback is not self]  # type: ignore[attr-defined]
            return
        self._detach()
        self._skipped.forget()

    @override
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Called when the model is on its device: resolve the rules, all or nothing."""
        self._detach()
        if not {"train", "validate"}.isdisjoint(self._stages):
            self._attach(trainer, pl_module)

    def _attach(self, trainer: Trainer, pl_module: LightningModule) -> None:
        joined = [callback._hook_manager for callback in our_callbacks(trainer)]
        hook_manager = hook_manager_of(trainer, pl_module, joined)
        self._is_scaled = has_scaler(trainer)
        participants = self._built(trainer, pl_module, hook_manager)
        if not participants:
            return
        if not hook_manager.participants:
            begin_run(hook_manager, trainer, our_callbacks)
        if "train" in self._stages:
            participants = [*self._skipped.start(trainer, hook_manager), *participants]
        position = next(i for i, callback in enumerate(all_callbacks(trainer)) if callback is self)
        self._hook_manager = hook_manager
        for i, participant in enumerate(participants):
            participant.order = (position, i)
            hook_manager.join(participant)
            self._participants.append(participant)
        if self._wants_final and hook_manager.install_final is None:
            # Lightning clips in this hook; without automatic optimization the module's own hook is the last one called.
            name = "configure_gradient_clipping" if pl_module.automatic_optimization else "on_before_optimizer_step"
            hook_manager.install_final = WrappedHook(pl_module, name, hook_manager).install

    def _built(self, trainer: Trainer, pl_module: LightningModule, hook_manager: HookManager) -> list[Participant]:
        name = f"{self.origin}: {type(self).__name__}" if self.origin else type(self).__name__
        try:
            participants = list(self._build(trainer, pl_module, hook_manager))
        except (RuleError, UnsupportedError) as error:
            if not self.origin:
                raise
            raise type(error)(f"{name}: {error}") from error
        if not participants:
            warnings.warn(f"{name}: no rule matches anything ({self._rules}); it does nothing in this run", stacklevel=2)
        return participants

    def _is_busy_elsewhere(self, trainer: Trainer) -> bool:
        """Whether this callback is in use by a run of another trainer, within which this run began."""
        owner = None if self._hook_manager is None else owner_of(self._hook_manager)
        if owner is trainer or not is_running(owner):
            return False
        warnings.warn(
            f"{type(self).__name__} is in use by a run of another Trainer that has not ended, and does nothing in this one; "
            "give each Trainer a callback of its own",
            stacklevel=2,
        )
        return True

    @override
    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Called before an epoch, which is when models are changed: compare the model with the plan at the first batch."""
        if self._hook_manager is not None:
            self._hook_manager.refresh.request()

    @override
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Called before a batch: open the gate, and at the first batch of a step put the hooks in place."""
        if self._hook_manager is not None:
            step = current_step(trainer)
            self._hook_manager.begin_batch(step, reporting=is_log_step(trainer, step))

    @override
    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        """Called before each backward: note the scale by which its gradients are multiplied."""
        if self._is_scaled and self._hook_manager is not None and self._hook_manager.gate.open:
            scale = loss_scale(trainer)
            if scale is not None:
                self._hook_manager.scaled_by(scale)

    @override
    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        """Called with accumulated, unscaled, averaged gradients: read or change them."""
        if self._hook_manager is not None and self._hook_manager.gate.open:
            for participant in self._participants:
                self._hook_manager.before_step(participant, optimizer)

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Called after a batch: close the gate, and at the last batch of a step end it."""
        hook_manager = self._hook_manager
        if hook_manager is None:
            return
        hook_manager.end_batch()
        self._after_batch(trainer, "train", batch_idx)
        if hook_manager.idle and not self._pending:
            return
        step = hook_manager.step
        if step is None or not ends_window(trainer):
            return
        self._end_step(trainer, step)
        if hook_manager.participants and hook_manager.participants[-1] in self._participants:
            hook_manager.end_step()

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Called after an epoch, also one that a callback cut short: close the gate."""
        if self._hook_manager is not None:
            self._hook_manager.end_batch()

    def _start_run(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Called before the run of a stage other than `train`; a validation may be part of a fit, or stand alone."""
        if self._hook_manager is not None:
            self._hook_manager.interrupt()
        elif not in_fit(trainer) and stage in self._stages:
            self._attach(trainer, pl_module)

    def _start_batch(self, trainer: Trainer, stage: str, batch_idx: int, dataloader_idx: int) -> None:
        if self._hook_manager is not None and stage in self._stages and not trainer.sanity_checking:
            self._hook_manager.begin_batch(batch_number(trainer, stage), stage=stage)

    def _end_batch(self, trainer: Trainer, stage: str, batch_idx: int, dataloader_idx: int) -> None:
        if self._hook_manager is not None and stage in self._stages and not trainer.sanity_checking:
            self._hook_manager.end_batch()
            self._after_batch(trainer, stage, batch_idx, dataloader_idx)

    def _end_run(self, trainer: Trainer, stage: str) -> None:
        if self._hook_manager is None or stage not in self._stages:
            return
        if not trainer.sanity_checking:
            self._after_run(trainer, stage)
        self._hook_manager.end_step(stage)
        if not in_fit(trainer):
            self._detach()

    @override
    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Called after the fit: remove all hooks."""
        self._detach()

    @override
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Called when the run failed or was interrupted: remove all hooks."""
        self._detach(exception)
        self._release_model()

    @override
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Called last: remove all hooks, whatever was skipped."""
        self._detach()
        self._release_model()

    @override
    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Called for a checkpoint: save what continues from step to step."""
        self._skipped.save(checkpoint)
        state = self._state() or self._saved or self._last
        if state:
            checkpoint.setdefault(self._saved_as, {})[self._saved_at(trainer)] = state

    @override
    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Called with a checkpoint, before or after the fit starts: continue from it."""
        self._skipped.load(checkpoint)
        state = checkpoint.get(self._saved_as, {}).get(self._saved_at(trainer), {})
        if self._hook_manager is None:
            self._saved = state
        else:
            self._load_state(state)

    @property
    def _saved_as(self) -> str:
        return f"lightning_hooks.{type(self).__name__}"

    def _saved_at(self, trainer: Trainer) -> str:
        """The key of this callback among those of its class in a checkpoint."""
        return str([callback for callback in our_callbacks(trainer) if type(callback) is type(self)].index(self))

    def _detach(self, error: BaseException | None = None) -> None:
        """Remove all hooks; a second call does nothing."""
        try:
            self._last = self._state() or self._last
        finally:
            self._skipped.stop()
            hook_manager, participants = self._hook_manager, self._participants
            self._hook_manager, self._participants = None, []
            for participant in participants:
                assert hook_manager is not None
                hook_manager.leave(participant)

    def _release_model(self) -> None:
        """Drop `log` and `log_dict`, bound methods of the model that Lightning gives every callback when a run begins."""
        for name in ("log", "log_dict"):
            vars(self).pop(name, None)

    @override
    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._start_run(trainer, pl_module, "validate")

    @override
    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._start_run(trainer, pl_module, "test")

    @override
    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._start_run(trainer, pl_module, "predict")

    @override
    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self._start_batch(trainer, "validate", batch_idx, dataloader_idx)

    @override
    def on_test_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self._start_batch(trainer, "test", batch_idx, dataloader_idx)

    @override
    def on_predict_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self._start_batch(trainer, "predict", batch_idx, dataloader_idx)

    @override
    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self._end_batch(trainer, "validate", batch_idx, dataloader_idx)

    @override
    def on_test_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self._end_batch(trainer, "test", batch_idx, dataloader_idx)

    @override
    def on_predict_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self._end_batch(trainer, "predict", batch_idx, dataloader_idx)

    @override
    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._end_run(trainer, "validate")

    @override
    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._end_run(trainer, "test")

    @override
    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._end_run(trainer, "predict")


def options_repr(callback: HooksCallback, kind: type[HooksCallback], **normalised: Any) -> str:
    """The call that makes a callback, with the arguments that differ from their defaults.

    Args:
        callback: with an attribute for each argument of `kind`.
        kind: its public class.
        normalised: what the attributes hold for a default that is converted.
    """
    defaults = {name: parameter.default for name, parameter in inspect.signature(kind).parameters.items()} | normalised
    shown = [f"{k}={getattr(callback, k)!r}" for k, default in defaults.items() if getattr(callback, k) != default]
    return f"{kind.__name__}({', '.join(shown)})"


def our_callbacks(trainer: Trainer) -> list[HooksCallback]:
    """The callbacks of this package in a trainer, in order.

    Lightning adds those from the environment to the list that the Trainer is given. A second Trainer with that list has
    those of the first too: only its own count, which come last.
    """
    ours = [callback for callback in all_callbacks(trainer) if isinstance(callback, HooksCallback)]
    marks = [callback.environment for callback in ours if callback.environment is not None]
    return [callback for callback in ours if callback.environment is None or callback.environment == marks[-1]]
