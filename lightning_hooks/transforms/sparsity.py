"""Setting elements to zero."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_hooks.transforms._batch import in_groups, over_values
from lightning_hooks.transforms.base import Context, Transform


@dataclass(frozen=True)
class Zero(Transform):
    """Replace every element by zero, NaN and infinity included.

    A parameter with a zero gradient is not frozen: weight decay and momentum still move it.

    Example:
        >>> Zero()([torch.tensor([1.0, float("nan")])], Context())
        [tensor([0., 0.])]
    """

    def __call__(self, tensors: list[Tensor], context: Context) -> list[Tensor]:
        """Zeros in the place of each tensor."""
        return over_values(tensors, context, self._change)

    def _change(self, values: list[Tensor], owned: bool) -> list[Tensor]:
        def run(group: list[Tensor]) -> Sequence[Tensor]:
            if owned:
                torch._foreach_zero_(group)
                return group
            return [_zeros(value) for value in group]

        return in_groups(values, run)


def _zeros(value: Tensor) -> Tensor:
    if not (value.requires_grad and torch.is_grad_enabled()):
        return torch.zeros_like(value)
    # An activation stays part of the graph, so that what came before it receives a zero gradient and not none at all,
    # which DDP reports as an unused parameter. A product with 0 would keep a NaN.
    return value.masked_fill(torch.ones((), dtype=torch.bool, device=value.device), 0)
