"""What a consumer can do in a plain loop, and the facts that it gets there."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from weakref import ref

from torch import nn
from torch.optim import Optimizer
from typing_extensions import override

from lightning_hooks.engine.participants.facts import facts_of_optimizers
from lightning_hooks.errors import UnsupportedError
from lightning_hooks.records.run_context import (
    RunContext,
    RunFacts,
    check_reason,
    checkpoint_name,
)
from lightning_hooks.stats.processes import rank, world_size


class LoopContext(RunContext):
    """The run of an `instrument` block.

    Args:
        model: held by a weak reference.
        optimizers: held by weak references.
        folder: the folder that the user gave, or None.

    Attributes:
        stopped: the reason of the first request to stop; None if there was no request.
    """

    def __init__(self, model: nn.Module, optimizers: Iterable[Optimizer], folder: Path | None) -> None:
        super().__init__(folder)
        self.stopped: str | None = None
        self._model = ref(model)
        self._optimizers = [ref(optimizer) for optimizer in optimizers]

    @property
    @override
    def facts(self) -> RunFacts:
        model = self._model()
        alive = [optimizer for reference in self._optimizers if (optimizer := reference()) is not None]
        optimizers = () if model is None else facts_of_optimizers(alive, model)
        return RunFacts(optimizers, rank=rank(), ranks=world_size(), loss_scale=None)

    @override
    def stop(self, reason: str) -> None:
        check_reason(reason)
        self.stopped = self.stopped or reason

    @override
    def save_checkpoint(self, name: str) -> None:
        name = checkpoint_name(name)
        raise UnsupportedError(
            f"save_checkpoint: instrument does not know what the loop would save as {name!r}; let the loop look at "
            "`watched.stopped`, or at an attribute of the consumer, and save there"
        )
