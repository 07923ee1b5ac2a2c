"""Conditions of `When`: at which steps, or above which norm, a transform is applied."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from lightning_hooks.rules.reading import as_callable
from lightning_hooks.rules.schedule import EveryN
from lightning_hooks.transforms._check import check_count, check_finite, check_norm_type
from lightning_hooks.transforms._norms import dense_values, total_norm
from lightning_hooks.transforms.base import Context


@dataclass(frozen=True)
class FirstSteps:
    """True at the first n steps of the run.

    Args:
        n: the number of steps; at least 1.

    Raises:
        RuleError: if `n` is not in its range.

    Example:
        >>> [FirstSteps(2)([], Context(step=step)) for step in range(4)]
        [True, True, False, False]
    """

    n: int

    def __post_init__(self) -> None:
        check_count(self, "n", at_least=1)

    def __call__(self, tensors: list[Tensor], context: Context) -> bool:
        """Whether this step is among the first n."""
        return context.step < self.n


@dataclass(frozen=True)
class EverySteps:
    """True at every n-th step, counted as in Lightning: `(step + 1) % n == 0`.

    Args:
        n: the interval in steps; at least 1.

    Raises:
        RuleError: if `n` is not in its range.

    Example:
        >>> [EverySteps(2)([], Context(step=step)) for step in range(4)]
        [False, True, False, True]
    """

    n: int

    def __post_init__(self) -> None:
        check_count(self, "n", at_least=1)

    def __call__(self, tensors: list[Tensor], context: Context) -> bool:
        """Whether this step is an n-th step."""
        return EveryN(self.n).due(context.step)


@dataclass(frozen=True)
class NormAbove:
    """True if the norm of all tensors, taken as one vector, is above a limit; the result stays on the device.

    A norm of NaN is not above the limit.

    Args:
        limit: the greatest norm for which the condition is False; at least 0.
        norm_type: the order of the norm; above 0, infinity for the maximum magnitude, 2 by default.

    Raises:
        RuleError: if `limit` or `norm_type` is not in its range.

    Example:
        >>> NormAbove(4.9)([torch.tensor([3.0]), torch.tensor([4.0])], Context())
        tensor(True)
    """

    needs_all: ClassVar[bool] = True

    limit: float
    _: KW_ONLY
    norm_type: float = 2.0

    def __post_init__(self) -> None:
        check_finite(self, "limit", at_least=0)
        check_norm_type(self)

    def __call__(self, tensors: list[Tensor], context: Context) -> Tensor:
        """A boolean scalar on the device of the first tensor; False for an empty list."""
        if not tensors:
            return torch.tensor(False, device="cpu")
        return total_norm(dense_values(tensors, context), self.norm_type) > self.limit


def as_condition(item: Any, where: str) -> Any:
    """Make a condition from a callable, its import path, or a mapping with `class_path` and `init_args`.

    Args:
        item: the value of the option; the conditions of this package need no path, as in `{"class_path": "FirstSteps"}`.
        where: names the option in messages.

    Raises:
        RuleError: the item cannot be called, imported or constructed.

    Example:
        >>> as_condition({"class_path": "FirstSteps", "init_args": {"n": 3}}, "When.condition")
        FirstSteps(n=3)
    """
    if isinstance(item, Mapping):
        fields = {str(key): value for key, value in item.items()}
        key = "class_path" if "class_path" in fields else "_target_"
        path = fields.get(key)
        if isinstance(path, str) and ("." not in path or path.startswith("lightning_hooks.transforms.")):
            fields[key] = f"{__name__}.{path.rpartition('.')[2]}"
        item = fields
    return as_callable(item, where, "tensors", "context")
