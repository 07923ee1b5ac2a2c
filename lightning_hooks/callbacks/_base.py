"""What every callback of ours does: join the dispatcher at fit start, open and close the gate, leave without a trace."""

from __future__ import annotations

from typing import Any
from weakref import WeakSet, ref

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import override

from lightning_hooks.callbacks._wrapped import WrappedHook
from lightning_hooks.engine.dispatcher import Dispatcher
from lightning_hooks.engine.participant import Participant

_MADE: WeakSet[Dispatcher] = WeakSet()


class HooksCallback(Callback):
    """Base of the callbacks: the life of a participant within a fit."""

    def __init__(self) -> None:
        self._dispatcher: Dispatcher | None = None
        self._participant: Participant | None = None

    def _build(self, trainer: Trainer, pl_module: LightningModule, dispatcher: Dispatcher) -> Participant:
        """Resolve the rules; raises before anything is hooked."""
        raise NotImplementedError

    def _finish(self, trainer: Trainer, step: int) -> None:
        """Called when a step ends, before its hooks may go."""

    @property
    def _wants_final(self) -> bool:
        return False

    def __getstate__(self) -> dict[str, Any]:
        """A copy or a pickle is not attached to anything."""
        return {**self.__dict__, "_dispatcher": None, "_participant": None}

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Called before a fit: drop what a fit that ended badly may have left."""
        self._leave()

    @override
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Called when the model stands on its device: resolve the rules, all or nothing."""
        self._leave()
        dispatcher = self._shared(trainer, pl_module)
        participant = self._build(trainer, pl_module, dispatcher)
        participant.order = (self._position(trainer),)
        dispatcher.join(participant)
        self._dispatcher, self._participant = dispatcher, participant
        if self._wants_final and "final" not in dispatcher.extras:
            # Lightning clips in this hook; without automatic optimization the module's own hook is the last one called.
            name = "configure_gradient_clipping" if pl_module.automatic_optimization else "on_before_optimizer_step"
            dispatcher.extras.keep(WrappedHook(pl_module, name, dispatcher).install(), key="final")

    @override
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Called before a batch: open the gate, and at the first batch of a step put the hooks in place."""
        if self._dispatcher is not None:
            step = current_step(trainer)
            self._dispatcher.begin(step, reporting=is_log_step(trainer, step))

    @override
    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Called after backward: note the scale by which its gradients were multiplied."""
        scale = loss_scale(trainer)
        if self._dispatcher is not None and scale is not None:
            self._dispatcher.scale = scale.detach().clone()

    @override
    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        """Called with accumulated, unscaled, averaged gradients: read or change them."""
        if self._dispatcher is not None and self._participant is not None:
            self._dispatcher.before_step(self._participant, optimizer)

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Called after a batch: close the gate, and at the last batch of a step write it."""
        dispatcher = self._dispatcher
        if dispatcher is None:
            return
        dispatcher.suspend()
        if dispatcher.step is None or trainer.fit_loop.epoch_loop._should_accumulate():
            return
        self._finish(trainer, dispatcher.step)
        if dispatcher.participants and dispatcher.participants[-1] is self._participant:
            dispatcher.end()

    @override
    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Called before validation: it is not watched."""
        if self._dispatcher is not None:
            self._dispatcher.suspend()

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Called after an epoch, also one that a callback cut short: close the gate."""
        if self._dispatcher is not None:
            self._dispatcher.suspend()

    @override
    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Called after the fit: leave no hook."""
        self._leave()

    @override
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Called when the fit failed or was interrupted: leave no hook."""
        self._leave()

    @override
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Called last: leave no hook, whatever was skipped."""
        self._leave()

    def _leave(self) -> None:
        dispatcher, participant = self._dispatcher, self._participant
        self._dispatcher = self._participant = None
        if dispatcher is not None and participant is not None:
            dispatcher.leave(participant)

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
        return dispatcher


def all_callbacks(trainer: Trainer) -> list[Callback]:
    """The callbacks of a trainer, in order."""
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    return callbacks


def our_callbacks(trainer: Trainer) -> list[HooksCallback]:
    """The callbacks of this package in a trainer, in order."""
    return [callback for callback in all_callbacks(trainer) if isinstance(callback, HooksCallback)]


def current_step(trainer: Trainer) -> int:
    """The x-axis of `self.log`: the same for all batches of an accumulation window."""
    return int(trainer.fit_loop.epoch_loop._batches_that_stepped)


def is_log_step(trainer: Trainer, step: int) -> bool:
    """Whether Lightning logs at a step."""
    every: int = trainer.log_every_n_steps  # type: ignore[attr-defined]
    return every > 0 and (step + 1) % every == 0


def loss_scale(trainer: Trainer) -> Tensor | None:
    """The scale of the loss as a tensor, or None where there is no scaler or it has not scaled yet."""
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    return None if scaler is None else getattr(scaler, "_scale", None)
