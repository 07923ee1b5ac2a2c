"""What the gallery of `check` is made of: models with one batch, and what should be said of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader


@dataclass(frozen=True)
class Plain:
    """A module with its loss, without Lightning.

    Args:
        model: called with the inputs: a tensor, a tuple of arguments, or a dictionary of named arguments.
        inputs: one batch of them.
        targets: those of the batch.
        loss: takes the outputs and the targets.
        optimizer: of the training.
        options: more arguments of `check`.
        peer_options: more arguments of `torchtest2.check_model`.
    """

    model: nn.Module
    inputs: Any
    targets: Any
    loss: Callable[[Any, Any], Tensor]
    optimizer: Optimizer
    options: dict[str, Any] = field(default_factory=dict)
    peer_options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Fit:
    """A LightningModule with its data.

    Args:
        module: the module.
        loader: the batches of training.
        arguments: the names or indices of the parts of a batch that `forward` takes.
        trainer: more arguments of the Trainer.
        options: more arguments of `check`.
        peer_options: more arguments of `torchtest2.check_model`.
    """

    module: LightningModule
    loader: DataLoader
    arguments: tuple[Any, ...] = (0,)
    trainer: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    peer_options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Expected:
    """What should be said of a bug.

    Args:
        checks: the names of the checks any of which names it.
        status: "fail", or "warn" if the same numbers can be meant.
        rows: a glob for names of modules, parameters or inputs, of which at least one must be named; "*" if the bug has no
            place.
    """

    checks: tuple[str, ...]
    status: str
    rows: str = "*"


@dataclass(frozen=True)
class Pattern:
    """A model of known health.

    Args:
        name: in kebab case.
        family: as the file that holds it.
        build: makes the model, the batch and the optimizer anew. It seeds everything itself.
        doc: one sentence on what it is, or on what is wrong.
        expected: what should be said; None if it is healthy.
        peer: the number of the pattern in the gallery of torchtest2 0.1, of which this is a version of its own; 0 if none.
    """

    name: str
    family: str
    build: Callable[[], Plain | Fit]
    doc: str
    expected: Expected | None = None
    peer: int = 0
