"""What every callback of ours does: join the dispatcher, open and close the gate for each batch, leave without a trace."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any
from weakref import WeakSet, ref

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
    loss_scale,
)
from lightning_hooks.callbacks._wrapped import WrappedHook
from lightning_hooks.engine.dispatcher import Dispatcher
from lightning_hooks.engine.participant import Participant
from lightning_hooks.engine.report import Match

_MADE: WeakSet[Dispatcher] = WeakSet()


class HooksCallback(EveryStage):
    """Base of the callbacks: the life of their participants within a fit, or within a run of another stage."""

    def __init__(self) -> None:
        self._dispatcher: Dispatcher | None = None
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

    def _build(self, trainer: Trainer, pl_module: LightningModule, dispatcher: Dispatcher) -> Sequence[Participant]:
        """Resolve the rules; raises before anything is hooked."""
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
        return {**self.__dict__, "_dispatcher": None, "_participants": []}

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Called before a run: drop what one that ended badly may have left."""
        self._leave()
        self._scaler.forget()

    @override
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Called when the model stands on its device: resolve the rules, all or nothing."""
        self._leave()
        if not {"train", "validate"}.isdisjoint(self._stages):
            self._attach(trainer, pl_module)

    def _attach(self, trainer: Trainer, pl_module: LightningModule) -> None:
        dispatcher = self._shared(trainer, pl_module)
        self._is_scaled = has_scaler(trainer)
        participants = list(self._build(trainer, pl_module, dispatcher))
        if "train" in self._stages:
            participants = [*self._scaler.start(trainer, dispatcher), *participants]
        position = self._position(trainer)
        self._dispatcher = dispatcher
        for i, participant in enumerate(participants):
            participant.order = (position, i)
            dispatcher.join(participant)
            self._participants.append(participant)
        if self._wants_final and dispatcher.final is None:
            # Lightning clips in this hook; without automatic optimization the module's own hook is the last one called.
            name = "configure_gradient_clipping" if pl_module.automatic_optimization else "on_before_optimizer_step"
            dispatcher.final = WrappedHook(pl_module, name, dispatcher).install

    @override
    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Called before an epoch, which is when models are changed: look at the first batch whether this one was."""
        if self._dispatcher is not None:
            self._dispatcher.renewal.want()

    @override
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Called before a batch: open the gate, and at the first batch of a step put the hooks in place."""
        if self._dispatcher is not None:
            step = current_step(trainer)
            if not self._dispatcher.rests(step):
                self._dispatcher.begin(step, reporting=is_log_step(trainer, step))

    @override
    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        """Called before each backward: note the scale by which its gradients are multiplied."""
        if self._is_scaled and self._dispatcher is not None and self._dispatcher.gate.open:
            scale = loss_scale(trainer)
            if scale is not None:
                self._dispatcher.scaled_by(scale)

    @override
    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        """Called with accumulated, unscaled, averaged gradients: read or change them."""
        if self._dispatcher is not None and self._dispatcher.gate.open:
            for participant in self._participants:
                self._dispatcher.before_step(participant, optimizer)

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Called after a batch: close the gate, and at the last batch of a step write it."""
        dispatcher = self._dispatcher
        if dispatcher is None:
            return
        if dispatcher.resting is None:
            dispatcher.suspend()
        self._finish_batch(trainer, "train", batch_idx)
        if dispatcher.resting is not None and not self._waits:
            return
        step = dispatcher.step
        if step is None or trainer.fit_loop.epoch_loop._should_accumulate():
            return
        self._finish(trainer, step)
        if dispatcher.participants and dispatcher.participants[-1] in self._participants:
            dispatcher.end()

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Called after an epoch, also one that a callback cut short: close the gate."""
        if self._dispatcher is not None:
            self._dispatcher.suspend()

    @override
    def _start_run(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if self._dispatcher is not None:
            self._dispatcher.interrupt()
        elif not in_fit(trainer) and stage in self._stages:
            self._attach(trainer, pl_module)

    @override
    def _start_batch(self, trainer: Trainer, stage: str, batch_idx: int, dataloader_idx: int) -> None:
        if self._dispatcher is not None and stage in self._stages and not trainer.sanity_checking:
            self._dispatcher.begin(batch_number(trainer, stage), stage=stage)

    @override
    def _end_batch(self, trainer: Trainer, stage: str, batch_idx: int, dataloader_idx: int) -> None:
        if self._dispatcher is not None and stage in self._stages and not trainer.sanity_checking:
            self._dispatcher.suspend()
            self._finish_batch(trainer, stage, batch_idx, dataloader_idx)

    @override
    def _end_run(self, trainer: Trainer, stage: str) -> None:
        if self._dispatcher is None or stage not in self._stages:
            return
        if not trainer.sanity_checking:
            self._finish_run(trainer, stage)
        self._dispatcher.end(stage)
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
        if self._dispatcher is not None:  # intervals may be others than before
            self._dispatcher.wake()

    def _leave(self) -> None:
        self._scaler.stop()
        dispatcher, participants = self._dispatcher, self._participants
        self._dispatcher, self._participants = None, []
        for participant in participants:
            assert dispatcher is not None
            dispatcher.leave(participant)

    def _let_go(self) -> None:
        """Forget the model, which Lightning gives every callback as `log` and `log_dict` when a run begins."""
        for name in ("log", "log_dict"):
            vars(self).pop(name, None)

    def _position(self, trainer: Trainer) -> int:
        return next(i for i, callback in enumerate(all_callbacks(trainer)) if callback is self)

    def _shared(self, trainer: Trainer, pl_module: LightningModule) -> Dispatcher:
        for callback in our_callbacks(trainer):
            if callback._dispatcher is not None and callback._dispatcher.model is pl_module:
                return callback._dispatcher
        # A fit that crashed without telling its callbacks leaves hooks, and Lightning's signal handlers keep its trainer.
        for stale in [made for made in _MADE if made.model is pl_module]:
            stale.close()
        known = ref(trainer)

        def optimizers() -> list[Optimizer]:
            alive = known()
            return list(alive.optimizers) if alive is not None else []

        dispatcher = Dispatcher(pl_module, optimizers)
        _MADE.add(dispatcher)
        dispatcher.extras.keep(First(trainer, dispatcher).install())
        return dispatcher


def our_callbacks(trainer: Trainer) -> list[HooksCallback]:
    """The callbacks of this package in a trainer, in order."""
    return [callback for callback in all_callbacks(trainer) if isinstance(callback, HooksCallback)]
