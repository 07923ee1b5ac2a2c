"""Multiplying by a constant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_hooks.transforms._batch import WIDER, foreach, in_groups, over_values, scaled
from lightning_hooks.transforms._check import check_finite
from lightning_hooks.transforms.base import Context, Transform


@dataclass(frozen=True)
class Scale(Transform):
    """Multiply each tensor by a constant.

    On gradients this is a learning rate of its own only for optimizers without normalisation, such as SGD: Adam divides
    a constant factor out again.

    Args:
        factor: what to multiply by; any finite number, -1 reverses a gradient.

    Raises:
        RuleError: where the factor is not a finite number.

    Example:
        >>> Scale(0.5)([torch.tensor([1.0, -2.0])], Context())
        [tensor([ 0.5000, -1.0000])]
    """

    factor: float

    def __post_init__(self) -> None:
        check_finite(self, "factor")

    def __call__(self, tensors: list[Tensor], context: Context) -> list[Tensor]:
        """Each tensor times `factor`."""
        return over_values(tensors, context, self._change)

    def _change(self, values: list[Tensor], owned: bool) -> list[Tensor]:
        def run(group: list[Tensor]) -> Sequence[Tensor]:
            wide = WIDER.get(group[0].dtype)
            if wide is not None and group[0].device.type == "cpu":
                # Torch on the CPU rounds a Python number to the dtype of the tensor, but in place only.
                return scaled(group, torch.tensor(self.factor, dtype=wide.to_real()), owned)
            return foreach("mul", group, self.factor, owned=owned)

        return in_groups(values, run)
