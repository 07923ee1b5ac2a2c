"""Questions to a Trainer about its current run, and the count of steps that its loss scaler skips."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar
from weakref import ref

import torch
from torch import Tensor
from torch.optim import Optimizer

from lightning_hooks.attached import AttachedState, attached_to
from lightning_hooks.callbacks._trainer_type import undeclared
from lightning_hooks.engine.participants.scaling import ScalerWatch
from lightning_hooks.engine.running.hook_manager import HookManager
from lightning_hooks.nested.pytree import leaves_of
from lightning_hooks.private import are_off, attribute, private
from lightning_hooks.saved_state import read_mapping, read_number

if TYPE_CHECKING:
    from lightning_hooks.callbacks._lightning import Callback, LightningModule, Trainer

P = ParamSpec("P")
T = TypeVar("T")
_SAVED_AS = "lightning_hooks.loss_scaler"


@dataclass(eq=False)
class Remembered(AttachedState):
    """What runs of one Trainer remember of earlier runs.

    Args:
        uncalled: the names of the modules that a warning has named as not called.
        warned_replaced: whether `warn_if_replaced` has warned.
        captures: the folder of captures, if the loggers have no separate folder for each run.
        boards: the folder of this package's event files, by `logdir`, which holds one folder for each Trainer.
    """

    uncalled: set[str] = field(default_factory=set)
    warned_replaced: bool = False
    captures: Path | None = None
    boards: dict[Path, Path] = field(default_factory=dict)


def remembered(trainer: Trainer) -> Remembered:
    """What the runs of a Trainer remember."""
    return attached_to(trainer, Remembered)


def deferred(trainer: Trainer, ask: Callable[Concatenate[Trainer, P], T], otherwise: T) -> Callable[P, T]:
    """A function that calls `ask` with the Trainer without keeping it alive; returns `otherwise` once it is collected."""
    reference = ref(trainer)

    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        alive = reference()
        return otherwise if alive is None else ask(alive, *args, **kwargs)

    return call


def all_callbacks(trainer: Trainer) -> list[Callback]:
    """The callbacks of a trainer, in order."""
    return undeclared(trainer).callbacks


def is_quick(trainer: Trainer) -> bool:
    """Whether the Trainer runs a few batches only, without loggers (`fast_dev_run`)."""
    return bool(undeclared(trainer).fast_dev_run)


def is_trainer_of(trainer: Trainer, pl_module: LightningModule) -> bool:
    """Whether a module holds this Trainer; within a fit it may hold another one, which has run it meanwhile."""
    held: object = pl_module.trainer
    return held is trainer


def is_running(trainer: Trainer | None) -> bool:
    """Whether a run of a Trainer is active; a failed run is not."""
    return trainer is not None and trainer.state.status.value == "running"


def lightning_logger(trainer: Trainer) -> logging.Logger:
    """Lightning's own `logging` logger, so that messages appear beside those of Lightning."""
    return logging.getLogger(next(kind.__module__ for kind in type(trainer).__mro__ if kind.__name__ == "Trainer"))


def is_alone(trainer: Trainer) -> bool:
    """Whether a run has one process. A process group may exist nevertheless, left behind by an earlier fit."""
    return trainer.world_size == 1


def optimizers_of(trainer: Trainer) -> Sequence[Optimizer]:
    """The optimizers of a trainer; they may change during a fit."""
    return list(trainer.optimizers)


def loaders_of(trainer: Trainer) -> Sequence[Any]:
    """The loaders of training; empty before they are set up."""
    loaders = trainer.train_dataloader
    return [] if loaders is None else leaves_of(loaders)


def overfits(trainer: Trainer) -> bool:
    """Whether the Trainer trains on a few batches only (`overfit_batches`)."""
    return undeclared(trainer).overfit_batches > 0


def current_step(trainer: Trainer) -> int:
    """The x-axis of `self.log`: the same for all batches of an accumulation window."""
    lost = "steps are those of the optimizers: other numbers with several of them, and in a validation within an epoch"
    step = attribute(trainer.fit_loop.epoch_loop, "epoch_loop._batches_that_stepped", int, lost)
    return trainer.global_step if step is None else step


def batches_of_epoch(trainer: Trainer) -> int:
    """How many batches of an epoch are trained; 0 between two epochs."""
    progress = trainer.fit_loop.epoch_loop.batch_progress
    return 0 if progress.is_last_batch else progress.current.ready


def last_step(trainer: Trainer) -> int | None:
    """The number of steps, as `current_step` counts them, after which the fit ends; None if there is no such number."""
    by_epochs = None
    if trainer.max_epochs is not None and trainer.max_epochs > 0 and math.isfinite(trainer.num_training_batches):
        by_epochs = trainer.max_epochs * math.ceil(trainer.num_training_batches / trainer.accumulate_grad_batches)
    # `max_steps` counts every step of every optimizer.
    by_steps = trainer.max_steps // max(len(trainer.optimizers), 1) if trainer.max_steps > 0 else None
    return min((steps for steps in (by_epochs, by_steps) if steps is not None), default=None)


def schedules_of(trainer: Trainer) -> Sequence[Any]:
    """The schedules of learning rates of a trainer, in the order of their configuration."""
    return [each.scheduler for each in getattr(trainer, "lr_scheduler_configs", ())]


def has_checkpoint(trainer: Trainer) -> bool:
    """Whether the run goes on from a checkpoint, `ckpt_path`."""
    return getattr(trainer, "ckpt_path", None) is not None


def follows_metric(trainer: Trainer) -> bool:
    """Whether a scheduler sets a learning rate by a metric."""
    configs: Sequence[Any] = getattr(trainer, "lr_scheduler_configs", ())
    return any(getattr(each, "reduce_on_plateau", False) for each in configs)


def ends_window(trainer: Trainer) -> bool:
    """Whether the current batch is the last one of its accumulation window, in which the optimizer steps."""
    progress = trainer.fit_loop.epoch_loop.batch_progress
    if progress.current.ready % trainer.accumulate_grad_batches == 0:
        return True
    is_last = progress.is_last_batch or progress.current.ready >= trainer.num_training_batches
    return is_last and not trainer.strategy.handles_gradient_accumulation


def is_log_step(trainer: Trainer, step: int) -> bool:
    """Whether Lightning logs at a step."""
    interval = undeclared(trainer).log_every_n_steps
    return interval > 0 and (step + 1) % interval == 0


def has_scaler(trainer: Trainer) -> bool:
    """Whether the Trainer has a loss scaler, which multiplies the loss by a scale."""
    return getattr(trainer.precision_plugin, "scaler", None) is not None


def loss_scale(trainer: Trainer) -> Tensor | None:
    """The scale of the loss as a tensor; None if there is no scaler, or it has not scaled yet."""
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    if scaler is None:
        return None
    if not hasattr(scaler, "_scale") or are_off():
        private("GradScaler._scale", partial(getattr, scaler, "_scale"), None, "reading the loss scale waits for the device")
        return torch.tensor(scaler.get_scale(), device="cpu")
    scale: Tensor | None = scaler._scale
    return scale


def loss_divisor(trainer: Trainer, pl_module: LightningModule) -> int:
    """By how much Lightning divides the loss of a batch before its backward: the batches of an optimizer's step."""
    return trainer.accumulate_grad_batches if pl_module.automatic_optimization else 1


def host_loss_scale(trainer: Trainer) -> float | None:
    """The scale of the loss without waiting for a device: 1.0 without a scaler, None if only the device knows it."""
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    if scaler is None:
        # DeepSpeed scales the loss in 16-bit training without a scaler object, and does not show the scale.
        return None if str(trainer.precision).startswith("16") else 1.0
    if not hasattr(scaler, "_scale") or are_off():
        return None
    scale: Tensor | None = scaler._scale
    # The scaler creates its tensor in the first backward. Until then it has the scale as a number, which needs no device.
    if scale is None:
        return float(scaler.get_scale())
    return float(scale) if scale.device.type == "cpu" else None


def found_inf(trainer: Trainer, optimizer: Any) -> Tensor | None:
    """What the loss scaler found in the gradients of an optimizer since its last step, as a tensor: above 0 if any is infinite.

    None if the scaler has not unscaled the gradients, which is when it checks them. It unscales those of a fused optimizer
    inside the optimizer's step, and none after a training step without a loss.
    """
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    if scaler is None:
        return None
    lost = "steps that the loss scaler skips are not recognised"
    states: Mapping[int, Any] | None = attribute(scaler, "GradScaler._per_optimizer_states", dict, lost)
    if states is None:
        return torch.zeros((), device=trainer.strategy.root_device)
    by_device = states[id(optimizer)].get("found_inf_per_device", {}) if id(optimizer) in states else {}
    numbers = [each.to(trainer.strategy.root_device) for each in by_device.values()]
    return torch.stack(numbers).sum() if numbers else None


def is_under_way(trainer: Trainer) -> bool:
    """Whether a run has begun: processes are started, and in a fit there are optimizers."""
    return trainer.state.fn is not None and is_running(trainer)


def in_fit(trainer: Trainer) -> bool:
    """Whether the current run is a fit, also during a validation inside the fit."""
    return trainer.state.fn is not None and trainer.state.fn.value == "fit"


def batch_number(trainer: Trainer, stage: str) -> int:
    """The number, from 0, of the batch that begins, over all loaders, in a run of a stage other than `train`.

    It starts at 0 in every run, so that a schedule selects the same batches in each validation.
    """
    if stage == "validate":
        loop = trainer.fit_loop.epoch_loop.val_loop if in_fit(trainer) else trainer.validate_loop
        return loop.batch_progress.current.ready - 1
    return (trainer.test_loop if stage == "test" else trainer.predict_loop).batch_progress.current.ready - 1


def sample_indices(trainer: Trainer, stage: str, batch_idx: int, dataloader_idx: int) -> Sequence[int] | None:
    """The indices of a batch's samples in the data set; known only when predicting from a `DataLoader` with a batch sampler."""
    loaders = trainer.predict_dataloaders if stage == "predict" else None
    if isinstance(loaders, Sequence):
        loaders = loaders[dataloader_idx] if dataloader_idx < len(loaders) else None
    # For a prediction Lightning wraps the batch sampler in an object that keeps the indices of the batches it returned.
    sampler = getattr(loaders, "batch_sampler", None)
    batches: Sequence[Sequence[int]] = getattr(sampler, "seen_batch_indices", ())
    return batches[batch_idx] if batch_idx < len(batches) else None


def warn_if_replaced(trainer: Trainer, pl_module: LightningModule) -> None:
    """Warn once per Trainer if its module holds another Trainer, whose callbacks Lightning calls around the optimizer's step.

    The module's Trainer is not put back here: Lightning also reads from it how to clip, so that would change the training.
    """
    if not is_trainer_of(trainer, pl_module) and not remembered(trainer).warned_replaced:
        remembered(trainer).warned_replaced = True
        warnings.warn(
            "another Trainer has run the module within this fit, and is still the module's trainer. Lightning now takes from "
            "that one how to clip, and which callbacks to call before a backward and before the optimizer steps: 'param', "
            "'grad' and 'update' have no rows, and rules with when='step' change nothing. `pl_module.trainer = trainer` after "
            "the inner run puts this Trainer back",
            stacklevel=2,
        )


class SkippedSteps:
    """The steps that a loss scaler skips, counted once per model, and kept in checkpoints."""

    def __init__(self) -> None:
        self._state: dict[str, float] = {}

    def start(self, trainer: Trainer, hook_manager: HookManager) -> list[ScalerWatch]:
        """Create the participant that counts, if the loss of this fit is scaled and no other callback has created one."""
        if not (has_scaler(trainer) and in_fit(trainer)) or _counting(hook_manager) is not None:
            return []
        watch = ScalerWatch(deferred(trainer, loss_scale, None), deferred(trainer, found_inf, None), trainer.optimizers)
        watch.load_state_dict(self._state)
        return [watch]

    def stop(self, hook_manager: HookManager | None) -> None:
        """Keep the count for a checkpoint that is saved after the fit."""
        self._state = self._count(hook_manager)

    def forget(self) -> None:
        """Start a new fit at 0; a checkpoint that is loaded later sets its count."""
        self._state = {}

    def save(self, checkpoint: dict[str, Any], hook_manager: HookManager | None) -> None:
        """Add the count to a checkpoint. After a fit a callback may have an older count, so the greatest one is saved."""
        state = self._count(hook_manager)
        if state:
            checkpoint[_SAVED_AS] = max(checkpoint.get(_SAVED_AS, state), state, key=lambda each: each["skipped_steps"])

    def load(self, checkpoint: dict[str, Any], hook_manager: HookManager | None) -> None:
        """Read the count from a checkpoint, before or after the fit starts.

        Raises:
            DamagedState: the checkpoint has no such count; it is removed, and the count starts again.
        """
        self._state = {}
        try:
            # Remove a damaged entry, so that other callbacks, which read the same checkpoint, do not warn of it again.
            saved = checkpoint.pop(_SAVED_AS, None)
            if saved is not None:
                count = read_mapping(saved, _SAVED_AS, ("skipped_steps",))["skipped_steps"]
                self._state = {"skipped_steps": read_number(count, "skipped_steps", at_least=0)}
                checkpoint[_SAVED_AS] = saved
        finally:
            watch = _counting(hook_manager)
            if watch is not None:
                watch.load_state_dict(self._state)

    def _count(self, hook_manager: HookManager | None) -> dict[str, float]:
        watch = _counting(hook_manager)
        return self._state if watch is None else watch.state_dict()


def _counting(hook_manager: HookManager | None) -> ScalerWatch | None:
    participants = () if hook_manager is None else hook_manager.participants
    return next((each for each in participants if isinstance(each, ScalerWatch)), None)
