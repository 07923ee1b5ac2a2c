"""The facts of optimizers for consumers, and what a consumer can do in a plain loop."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any
from weakref import ref

from torch import Tensor, nn
from torch.optim import Optimizer
from typing_extensions import override

from lightning_hooks.errors import UnsupportedError
from lightning_hooks.records.facts import GroupFacts, OptimizerFacts
from lightning_hooks.records.run_context import (
    RunContext,
    RunFacts,
    check_reason,
    checkpoint_name,
)
from lightning_hooks.stats.processes import rank, world_size


def facts_of_optimizers(optimizers: Iterable[Any], model: nn.Module) -> tuple[OptimizerFacts, ...]:
    """What optimizers do to which parameters of a model, without waiting for a device."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return tuple(
        OptimizerFacts(type(optimizer).__name__, tuple(_group(group, names) for group in optimizer.param_groups))
        for optimizer in optimizers
        if hasattr(optimizer, "param_groups")
    )


def _group(group: dict[str, Any], names: dict[int, str]) -> GroupFacts:
    params = tuple(names[id(parameter)] for parameter in group["params"] if id(parameter) in names)
    return GroupFacts(_number(group.get("lr")), _number(group.get("weight_decay")), params)


def _number(value: Any) -> float | None:
    """A number of the host. Optimizers for CUDA graphs keep the learning rate in a tensor on the device."""
    if isinstance(value, Tensor):
        return float(value) if value.device.type == "cpu" and value.numel() == 1 else None
    return float(value) if isinstance(value, (int, float)) else None


class LoopContext(RunContext):
    """The run of an `instrument` block.

    Args:
        model: known weakly.
        optimizers: likewise.
        folder: as the user gave it.

    Attributes:
        stopped: the reason of the first request to stop; None without one.
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
        optimizers = [optimizer for known in self._optimizers if (optimizer := known()) is not None]
        found = () if model is None else facts_of_optimizers(optimizers, model)
        return RunFacts(found, rank=rank(), ranks=world_size(), loss_scale=None)

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
