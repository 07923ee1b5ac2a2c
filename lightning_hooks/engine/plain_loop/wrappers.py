"""The module and the optimizer inside what Fabric, accelerate and torch's data parallelism wrap around them."""

from __future__ import annotations

from typing import Any, Final

from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

_OPTIMIZERS: Final = frozenset({"_FabricOptimizer", "LightningOptimizer", "AcceleratedOptimizer"})
"""The classes whose `step` calls that of their attribute `optimizer`, or skips the step, and does nothing else to weights."""


def unwrapped_model(model: nn.Module) -> nn.Module:
    """The user's own module, whose names rules are matched against. FSDP and compiled wrappers stay.

    Example:
        >>> layer = nn.Linear(1, 1)
        >>> unwrapped_model(nn.DataParallel(layer)) is layer
        True
    """
    while True:
        if _is_a(model, {"_FabricModule"}):
            # The first child is the module that Fabric calls: DDP, a compiled module, or the user's own.
            model = next(model.children())
        elif isinstance(model, (DataParallel, DistributedDataParallel)):
            model = model.module
        else:
            return model


def unwrapped_optimizer(optimizer: Any) -> Any:
    """The optimizer that steps, inside a wrapper of Fabric, Lightning or accelerate, or one that forwards hooks."""
    while _is_a(optimizer, _OPTIMIZERS):
        optimizer = optimizer.optimizer
    # A wrapper with `__getattr__` may forward the registration of hooks: the optimizer that has the hooks is the one inside.
    return getattr(getattr(optimizer, "register_step_pre_hook", None), "__self__", optimizer)


def _is_a(value: object, names: frozenset[str] | set[str]) -> bool:
    # Compare the names of classes, because importing these libraries takes long. Fabric makes a subclass of each optimizer.
    return any(kind.__name__ in names for kind in type(value).__mro__)
