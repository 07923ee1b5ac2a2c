"""Addition of random noise."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lightning_hooks.transforms._batch import WIDER, over_each
from lightning_hooks.transforms._check import check_factor, check_finite
from lightning_hooks.transforms.base import Context, Transform


@dataclass(frozen=True)
class AddNoise(Transform):
    """Add Gaussian noise of mean 0, whose variance at step t is `std**2 / (1 + t)**decay`.

    The real and the imaginary part of a complex element get half of the variance each. Elements that a sparse
    tensor does not store stay zero.

    Source: Neelakantan et al., "Adding Gradient Noise Improves Learning for Very Deep Networks", 2015. Their eta is
    `std**2` (0.01, 0.3 or 1.0), their gamma is `decay` (0.55).

    Args:
        std: the standard deviation at step 0, in units of the tensor; at least 0.
        decay: how fast the variance decreases with the step; 0, the default, for constant noise.

    Raises:
        RuleError: if `std` or `decay` is not a finite number of at least 0.

    Example:
        >>> AddNoise(std=0.1, decay=0.55)([torch.zeros(2, 3)], Context(step=10, seed=1))[0].shape
        torch.Size([2, 3])
        >>> round(AddNoise(std=0.1, decay=1.0).std_at(step=3), 3)
        0.05
    """

    random: ClassVar[bool] = True

    std: float
    _: KW_ONLY
    decay: float = 0.0

    def __post_init__(self) -> None:
        check_factor(self, "std", at_least=0)
        check_finite(self, "decay", at_least=0)

    def std_at(self, step: int) -> float:
        """The standard deviation of the noise at a step.

        Args:
            step: the number of the step, from 0.

        Example:
            >>> AddNoise(std=0.5).std_at(step=100)
            0.5
        """
        return float(self.std * (1 + step) ** (-self.decay / 2))

    def __call__(self, tensors: list[Tensor], context: Context) -> list[Tensor]:
        """Each tensor plus noise, drawn in the order of the tensors."""
        std = self.std_at(context.step)

        def add(value: Tensor, owned: bool) -> Tensor:
            # Noise for float16 and bfloat16 is drawn and added in float32, so that the sum is rounded once.
            noise = torch.empty_like(value, dtype=WIDER.get(value.dtype, value.dtype), requires_grad=False)
            noise.normal_(0.0, std, generator=context.generator_for(value.device))
            return value.add_(noise) if owned else (value + noise).to(value.dtype)

        # Change one tensor at a time: a batched addition would need the noise of all gradients in memory at once.
        return over_each(tensors, context, add)
