"""What every callback of ours does: join the hook manager, open and close the gate for each batch, leave without a trace."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Sequence
from typing import Any
from weakref import ReferenceType, WeakKeyDictionary, ref

from lightning.pytorch import LightningModule, Trainer
from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import override

from lightning_hooks.callbacks._every_stage import EveryStage
from lightning_hooks.callbacks._first import First
from lightning_hooks.callbacks._scaled import ScalerCount
from lightning_hooks.callbacks._trainer import (
    all_callbacks,
    batch_number,
    current_step,
    has_scaler,
    in_fit,
    is_log_step,
    is_running,
    loss_scale,
)
from lightning_hooks.callbacks._wrapped import WrappedHook
from lightning_hooks.engine.hook_manager import HookManager, live_hook_managers
from lightning_hooks.engine.participant import Participant
from lightning_hooks.engine.plan.match_report import Match
from lightning_hooks.errors import RuleError, UnsupportedError

_OWNERS: WeakKeyDictionary[HookManager, ReferenceType[Trainer]] = WeakKeyDictionary()


class HooksCallback(EveryStage):
    """Base of the callbacks: the life of their participants within a fit, or within a run of another stage."""

    origin: str = ""
    """The file and the place in it that this one was read from, for messages; empty for one made in Python."""
    environment: str | None = None
    """A mark that the callbacks of one Trainer from the environment variable share; None for others."""

    def __init__(self) -> None:
        self._hook_manager: HookManager | None = None
        self._participants: list[Participant] = []
        self._scaler = ScalerCount()
        self._is_scaled = False  # whether the loss is

    @property
    def _stages(self) -> Collection[str]:
        """In which stages it does anything: of `train`, `validate`, `test`, `predict`."""
        return ("train",)

    def match(self, model: LightningModule) -> Match:
        """What the rules match in a model, without a run."""
        raise NotImplementedError

    def _build(self, trainer: Trainer, pl_module: LightningModule, hook_manager: HookManager) -> Sequence[Participant]:
        """Resolve the rules; raises before anything is hooked. Empty where no rule matches anything."""
        raise NotImplementedError

    @property
    def _rules(self) -> str:
        """The rules by the names that messages use: `watch[0], watch[1]`."""
        raise NotImplementedError

    def _finish(self, trainer: Trainer, step: int) -> None:
        """Called when a step of training ends, before its hooks may go."""

    @property
    def _waits(self) -> bool:
        """Whether a step that has ended is still to be finished when the next one ends, even if nobody acts in that."""
        return False

    def _finish_batch(self, trainer: Trainer, stage: str, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Called after a batch of any stage."""

    def _finish_run(self, trainer: Trainer, stage: str) -> None:
        """Called when a run of a stage other than `train` ends: one validation, for example."""

    @property
    def _wants_final(self) -> bool:
        return False

    def __getstate__(self) -> dict[str, Any]:
        """A copy or a pickle is not attached to anything."""
        return {**self.__dict__, "_hook_manager": None, "_participants": []}

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Called before a run: drop what one that ended badly may have left, or leave the run to other callbacks."""
        if self not in our_callbacks(trainer) or self._is_busy_elsewhere(trainer):
            trainer.callbacks = [callback for callback in all_callbacks(trainer) if callback is not self]  # type: ignore[attr-defined]
            return
        self._leave()
        self._scaler.forget()

    @override
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Called when the model stands on its device: resolve the rules, all or nothing."""
        self._leave()
        if not {"train", "validate"}.isdisjoint(self._stages):
            self._attach(trainer, pl_module)

    def _attach(self, trainer: Trainer, pl_module: LightningModule) -> None:
        hook_manager = self._shared(trainer, pl_module)
        self._is_scaled = has_scaler(trainer)
        participants = self._built(trainer, pl_module, hook_manager)
        if not participants:
            return
        if "train" in self._stages:
            participants = [*self._scaler.start(trainer, hook_manager), *participants]
        position = self._position(trainer)
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
        """Whether a run of another trainer, in which this one began, has this callback at work."""
        owner = None if self._hook_manager is None else _owner(self._hook_manager)
        if owner is trainer or not is_running(owner):
            return False
        warnings.warn(
            f"{type(self).__name__} is at work in a run of another Trainer that has not ended, and does nothing in this one; "
            "give each Trainer a callback of its own",
            stacklevel=2,
        )
        return True

    @override
    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Called before an epoch, which is when models are changed: look at the first batch whether this one was."""
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
        """Called after a batch: close the gate, and at the last batch of a step write it."""
        hook_manager = self._hook_manager
        if hook_manager is None:
            return
        hook_manager.end_batch()
        self._finish_batch(trainer, "train", batch_idx)
        if not hook_manager.active and not self._waits:
            return
        step = hook_manager.step
        if step is None or trainer.fit_loop.epoch_loop._should_accumulate():
            return
        self._finish(trainer, step)
        if hook_manager.participants and hook_manager.participants[-1] in self._participants:
            hook_manager.end_step()

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Called after an epoch, also one that a callback cut short: close the gate."""
        if self._hook_manager is not None:
            self._hook_manager.end_batch()

    @override
    def _start_run(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if self._hook_manager is not None:
            self._hook_manager.interrupt()
        elif not in_fit(trainer) and stage in self._stages:
            self._attach(trainer, pl_module)

    @override
    def _start_batch(self, trainer: Trainer, stage: str, batch_idx: int, dataloader_idx: int) -> None:
        if self._hook_manager is not None and stage in self._stages and not trainer.sanity_checking:
            self._hook_manager.begin_batch(batch_number(trainer, stage), stage=stage)

    @override
    def _end_batch(self, trainer: Trainer, stage: str, batch_idx: int, dataloader_idx: int) -> None:
        if self._hook_manager is not None and stage in self._stages and not trainer.sanity_checking:
            self._hook_manager.end_batch()
            self._finish_batch(trainer, stage, batch_idx, dataloader_idx)

    @override
    def _end_run(self, trainer: Trainer, stage: str) -> None:
        if self._hook_manager is None or stage not in self._stages:
            return
        if not trainer.sanity_checking:
            self._finish_run(trainer, stage)
        self._hook_manager.end_step(stage)
        if not in_fit(trainer):
            self._leave()

    @override
    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Called after the fit: leave no hook."""
        self._leave()

    @override
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Called when the fit failed or was interrupted: leave no hook."""
        self._leave()
        self._let_go()

    @override
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Called last: leave no hook, whatever was skipped."""
        self._leave()
        self._let_go()

    @override
    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Called for a checkpoint: save how many steps the loss scaler left out."""
        self._scaler.save(checkpoint)

    @override
    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Called with a checkpoint, before or after the fit starts: go on counting."""
        self._scaler.load(checkpoint)

    def _leave(self) -> None:
        self._scaler.stop()
        hook_manager, participants = self._hook_manager, self._participants
        self._hook_manager, self._participants = None, []
        for participant in participants:
            assert hook_manager is not None
            hook_manager.leave(participant)

    def _let_go(self) -> None:
        """Forget the model, which Lightning gives every callback as `log` and `log_dict` when a run begins."""
        for name in ("log", "log_dict"):
            vars(self).pop(name, None)

    def _position(self, trainer: Trainer) -> int:
        return next(i for i, callback in enumerate(all_callbacks(trainer)) if callback is self)

    def _shared(self, trainer: Trainer, pl_module: LightningModule) -> HookManager:
        for callback in our_callbacks(trainer):
            if callback._hook_manager is not None and callback._hook_manager.model is pl_module:
                return callback._hook_manager
        # A fit that crashed without telling its callbacks leaves hooks, and Lightning's signal handlers keep its trainer.
        for made in [made for made in _OWNERS if made.model is pl_module]:
            if _owner(made) is trainer or not is_running(_owner(made)):
                made.close()
        known = ref(trainer)

        def optimizers() -> list[Optimizer]:
            alive = known()
            return list(alive.optimizers) if alive is not None else []

        hook_manager = HookManager(pl_module, optimizers)
        for outer in live_hook_managers(pl_module):
            if _owner(outer) is not trainer and is_running(_owner(outer)):
                hook_manager.run_handles.keep(_Interruption(outer))
        _OWNERS[hook_manager] = known
        hook_manager.run_handles.keep(First(trainer, hook_manager).install())
        return hook_manager


class _Interruption:
    """Keeps the hooks of a run off while another one, which began inside it, works on the same model."""

    def __init__(self, outer: HookManager) -> None:
        self._outer: HookManager | None = outer
        outer.pause(True)

    def remove(self) -> None:
        """Go on; harmless the second time, and where the outer run has ended."""
        outer, self._outer = self._outer, None
        if outer is not None and outer in live_hook_managers(outer.model):
            outer.meter.interrupt()
            outer.pause(False)


def _owner(hook_manager: HookManager) -> Trainer | None:
    """The trainer in whose run it was made."""
    known = _OWNERS.get(hook_manager)
    return None if known is None else known()


def our_callbacks(trainer: Trainer) -> list[HooksCallback]:
    """The callbacks of this package in a trainer, in order.

    Lightning adds those from the environment to the list that the Trainer is given. A second Trainer with that list has
    those of the first too: only its own count, which come last.
    """
    ours = [callback for callback in all_callbacks(trainer) if isinstance(callback, HooksCallback)]
    marks = [callback.environment for callback in ours if callback.environment is not None]
    return [callback for callback in ours if callback.environment is None or callback.environment == marks[-1]]
