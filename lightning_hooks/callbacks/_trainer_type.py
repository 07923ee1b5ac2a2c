"""What this package uses of a Trainer, as protocols: the Trainers of both packages of Lightning have all of it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

if TYPE_CHECKING:
    from lightning_hooks.callbacks._lightning import Callback

T = TypeVar("T")


class Named(Protocol):
    """A member of an enum whose values are strings, as Lightning names its stages."""

    @property
    def value(self) -> str:
        """The name."""


class State(Protocol):
    """What a Trainer does now."""

    @property
    def status(self) -> Named:
        """`running` during a run, until it fails or ends."""

    @property
    def fn(self) -> Named | None:
        """`fit`, `validate`, `test` or `predict`; None before the first run."""


class Count(Protocol):
    """How many batches there were."""

    ready: int


class Progress(Protocol):
    """The batches of a loop."""

    @property
    def current(self) -> Count:
        """The batches since the run of the loop began."""


class BatchProgress(Progress, Protocol):
    """The batches of training."""

    is_last_batch: bool


class EvaluationLoop(Protocol):
    """A loop of a stage other than `train`."""

    @property
    def batch_progress(self) -> Progress:
        """Its batches."""


class EpochLoop(Protocol):
    """The loop of one epoch of training."""

    @property
    def batch_progress(self) -> BatchProgress:
        """Its batches."""

    @property
    def batch_idx(self) -> int:
        """The index of the batch under way."""

    @property
    def val_loop(self) -> EvaluationLoop:
        """The validation within a fit."""


class FitLoop(Protocol):
    """The loop of a fit."""

    @property
    def epoch_loop(self) -> EpochLoop:
        """The loop of one epoch."""


class Strategy(Protocol):
    """How a run is spread over devices and processes."""

    @property
    def root_device(self) -> torch.device:
        """The device of this process."""

    @property
    def handles_gradient_accumulation(self) -> bool:
        """Whether the strategy accumulates gradients by itself."""

    def backward(self, closure_loss: Tensor, optimizer: Optimizer | None, *args: Any, **kwargs: Any) -> Tensor:
        """Run the backward pass of a loss."""

    def broadcast(self, obj: T, src: int = 0) -> T:
        """The object of one process in all of them. Collective."""


class PrecisionPlugin(Protocol):
    """The precision of a run. That with a loss scaler has it as `scaler`."""

    def forward_context(self) -> AbstractContextManager[Any]:
        """Surrounds a forward pass."""

    def train_step_context(self) -> AbstractContextManager[Any]:
        """Surrounds a training step."""


class Trainer(Protocol):
    """What this package uses of a Trainer, except what `undeclared` returns."""

    should_stop: bool

    @property
    def state(self) -> State: ...
    @property
    def strategy(self) -> Strategy: ...
    @property
    def precision_plugin(self) -> PrecisionPlugin: ...
    @property
    def accelerator(self) -> object: ...
    @property
    def precision(self) -> object: ...
    @property
    def lightning_module(self) -> nn.Module: ...
    @property
    def optimizers(self) -> Sequence[Optimizer]: ...
    @property
    def lr_scheduler_configs(self) -> Sequence[Any]: ...
    @property
    def loggers(self) -> Sequence[Any]: ...
    @property
    def log_dir(self) -> str | None: ...
    @property
    def default_root_dir(self) -> str: ...
    @property
    def checkpoint_callback(self) -> object | None: ...
    @property
    def progress_bar_callback(self) -> Any | None: ...
    @property
    def predict_dataloaders(self) -> Any | None: ...
    @property
    def fit_loop(self) -> FitLoop: ...
    @property
    def validate_loop(self) -> EvaluationLoop: ...
    @property
    def test_loop(self) -> EvaluationLoop: ...
    @property
    def predict_loop(self) -> EvaluationLoop: ...
    @property
    def sanity_checking(self) -> bool: ...
    @property
    def global_rank(self) -> int: ...
    @property
    def world_size(self) -> int: ...
    @property
    def is_global_zero(self) -> bool: ...
    @property
    def current_epoch(self) -> int: ...
    @property
    def global_step(self) -> int: ...
    @property
    def max_epochs(self) -> int | None: ...
    @property
    def max_steps(self) -> int: ...
    @property
    def num_training_batches(self) -> int | float: ...
    @property
    def limit_train_batches(self) -> int | float: ...
    @property
    def train_dataloader(self) -> Any | None: ...
    @property
    def accumulate_grad_batches(self) -> int: ...
    @property
    def gradient_clip_val(self) -> int | float | None: ...
    @property
    def gradient_clip_algorithm(self) -> object | None: ...

    def save_checkpoint(self, filepath: Path) -> None: ...


class Undeclared(Protocol):
    """Attributes that every Trainer has and no class of Lightning declares: parts of the Trainer set them on it."""

    callbacks: list[Callback]
    fast_dev_run: int | bool
    log_every_n_steps: int
    overfit_batches: int | float


def undeclared(trainer: Trainer) -> Undeclared:
    """The Trainer as one with the attributes that its class does not declare."""
    same: Any = trainer  # `cast` would be a call more, several times a step
    declared: Undeclared = same
    return declared
