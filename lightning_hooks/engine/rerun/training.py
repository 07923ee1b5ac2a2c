"""Training: how one batch trains a model, so that checks, the autopsy of a flight record and `replay` can run a step again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lightning_hooks.engine.running.run import paused_runs


class Training:
    """A model, its optimizers, and the step in which a batch trains it.

    A step changes the training. Whoever runs one takes a snapshot before, restores it afterwards, and surrounds the step with
    `quiet`.

    Args:
        model: the root module.

    Attributes:
        precision: in which the step runs: `float32`, or what the Trainer calls it.
        is_manual: whether the step itself calls the optimizers, so that its updates can be left out when it runs again.
        accumulates: the number of batches whose gradients are added up for one step of the optimizer; None if it is not known.
        divides: whether a Trainer divides the loss of each of them by their number.
        rank: the process.
        world_size: the number of processes that train the model together.
    """

    precision = "float32"
    is_manual = False
    accumulates: int | None = 1
    divides = False
    rank = 0
    world_size = 1

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    @property
    def optimizers(self) -> list[Optimizer]:
        """The optimizers that the step uses; they may change from step to step."""
        return []

    @property
    def scaler(self) -> Any:
        """The loss scaler; None without one."""
        return None

    @property
    def scales_loss(self) -> bool:
        """Whether a loss scaler multiplies the loss, so that first gradients may overflow."""
        return self.scaler is not None

    @property
    def holders(self) -> Iterable[Any]:
        """Objects beside the model and the optimizers whose state a step may change, such as schedulers and loss scalers."""
        return ()

    @property
    def other_parameters(self) -> Iterable[nn.Parameter]:
        """Parameters that are trained and belong to no module of the model, such as those of a loss."""
        return ()

    def refusal(self) -> str:
        """Why one process cannot run a step again, as a clause; empty if it can."""
        return ""

    def facts(self) -> Mapping[str, Any]:
        """Learning rates, precision and versions: what a record says of the training, as values of JSON."""
        return {}

    def train(self, batch: Any, batch_idx: int) -> Tensor | None:
        """Run one whole step: forward, loss, backward, and the updates of the optimizers.

        Args:
            batch: a copy, which the step may change.
            batch_idx: its number in the epoch.

        Returns:
            The loss; None if the step does not return it.
        """
        raise NotImplementedError

    def differentiate(self, batch: Any, batch_idx: int, updates: int = 0) -> Tensor | None:
        """Run forward, loss and backward of a step, without an update.

        A step that calls its optimizers itself ends at the first update that has not happened yet.

        Args:
            batch: the batch.
            batch_idx: its number in the epoch.
            updates: the number of updates that have happened in the step; the parameters have them already.

        Returns:
            The loss; None if the step does not return it.
        """
        raise NotImplementedError

    def forward_context(self) -> AbstractContextManager[Any]:
        """The context in which a step calls modules, such as autocast."""
        return nullcontext()

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Surrounds a step that runs again, so that nothing else takes part in it: no hook of this package is on the model."""
        with paused_runs(self.model), torch.enable_grad():
            yield

    def type_of(self, name: str) -> str:
        """The class of a module; empty if there is no such module."""
        module = dict(self.model.named_modules()).get(name)
        return "" if module is None else type(module).__name__

    def tensor_of(self, name: str) -> Tensor | None:
        """A parameter or buffer by its name; None if there is none."""
        return dict(self.model.named_parameters()).get(name, dict(self.model.named_buffers()).get(name))

    def type_of_owner(self, parameter: str) -> str:
        """The class of the module that holds a parameter."""
        return self.type_of(parameter.rpartition(".")[0])
