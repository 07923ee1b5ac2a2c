"""What a lookout is told of its run: what the driver knows of the code around the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import ref

from torch import Tensor, nn

from lightning_hooks.engine.lookouts.planned import Planned
from lightning_hooks.rules.patterns import named_parameters


@dataclass(frozen=True)
class Surroundings:
    """The code around a model.

    Args:
        model: returns the root module; None if it was garbage-collected.
        optimizers: returns the current optimizers.
        schedules: returns the current schedules of learning rates, as far as they are known.
        saved: returns what the checkpoint kept from which the fit goes on, a `Seam`; None without one.
        is_resumed: returns whether a fit whose first step is not step 0 says that it goes on from a checkpoint.
        knows_batches: whether the driver passes on the batches and their losses: not in a plain loop.
        loaders: returns the loaders of training, as far as the driver knows them.
        overfits: whether the driver was told to train on a few batches only (`overfit_batches`).
        planned: returns the schedules that the driver advances, with its plan; none by default.
        batches: returns how many batches of an epoch are trained; 0 between two epochs.
    """

    model: Callable[[], nn.Module | None]
    optimizers: Callable[[], Sequence[Any]]
    schedules: Callable[[], Sequence[Any]] = tuple
    saved: Callable[[], Any] = lambda: None
    is_resumed: Callable[[], bool] = lambda: True
    knows_batches: bool = False
    loaders: Callable[[], Sequence[Any]] = tuple
    overfits: bool = False
    planned: Callable[[], Sequence[Planned]] = tuple
    batches: Callable[[], int] = int

    @classmethod
    def of(cls, model: nn.Module, optimizers: Callable[[], Sequence[Any]], **known: Any) -> Surroundings:
        """Those of a model, which is known weakly; `known` are other fields."""
        return cls(ref(model), optimizers, **known)

    def names(self) -> dict[int, str]:
        """The names of the parameters of the model, by their ids."""
        model = self.model()
        return {} if model is None else {id(each.value): each.name for each in named_parameters(model)}

    def parameters(self) -> list[tuple[int, list[Tensor]]]:
        """The number of each optimizer, with its parameters that are trained."""
        return [
            (number, [each for group in optimizer.param_groups for each in group["params"] if each.requires_grad])
            for number, optimizer in enumerate(self.optimizers())
        ]
