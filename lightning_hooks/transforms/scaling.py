"""Multiplication of tensors by a constant, by a number that depends on the step, or to a chosen norm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from lightning_hooks.errors import RuleError
from lightning_hooks.foreach import foreach, in_groups
from lightning_hooks.rules.reading import as_callable
from lightning_hooks.transforms._batch import WIDER, over_values, scaled
from lightning_hooks.transforms._check import check_factor, check_finite, check_flag
from lightning_hooks.transforms._norms import norms, times, total_norm
from lightning_hooks.transforms._schedule import Curve, as_points, number_at
from lightning_hooks.transforms.base import Context, Transform


@dataclass(frozen=True)
class Scale(Transform):
    """Multiply each tensor by a constant.

    On gradients this acts like a separate learning rate only for optimizers without normalisation, such as SGD. Adam
    cancels a constant factor.

    Source: `optax.scale`.

    Args:
        factor: the factor; any finite number. -1 reverses a gradient.

    Raises:
        RuleError: if the factor is not a finite number.

    Example:
        >>> Scale(0.5)([torch.tensor([1.0, -2.0])], Context())
        [tensor([ 0.5000, -1.0000])]
    """

    elementwise: ClassVar[bool] = True
    keeps_direction: ClassVar[bool] = True

    factor: float

    def __post_init__(self) -> None:
        check_factor(self, "factor")
        object.__setattr__(self, "keeps_direction", self.factor >= 0)

    def __call__(self, tensors: list[Tensor], context: Context) -> list[Tensor]:
        """Each tensor times `factor`."""
        return times_number(tensors, context, self.factor)


@dataclass(frozen=True)
class ScaleBySchedule(Transform):
    """Multiply each tensor by a number that depends on the step.

    Source: `optax.scale_by_schedule`, which counts its own updates from 0. Here the step is the training loop's, so
    it continues after a resume and does not restart with the rule.

    Args:
        points: pairs of a step and a factor, in order of steps; linear interpolation between points, constant before the
            first and after the last.
        call: instead of `points`, a function that gets the step number (from 0) and returns the factor, or its import path.

    Raises:
        RuleError: both or neither of `points` and `call` are given, or the given one is invalid.
        TransformError: when the callable gives anything but a finite number.

    Example:
        >>> ScaleBySchedule(points=[(0, 0.0), (100, 1.0)])([torch.tensor([8.0])], Context(step=25))
        [tensor([2.])]
    """

    elementwise: ClassVar[bool] = True

    points: Sequence[Sequence[Any]] | None = None
    _: KW_ONLY
    call: str | Callable[[int], float] | None = None
    _schedule: Callable[[int], float] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if (self.points is None) == (self.call is None):
            raise RuleError(f"ScaleBySchedule needs points or call, got {'neither' if self.call is None else 'both'}")
        # Setting an attribute of a frozen dataclass raises, so call the method of `object`.
        if self.points is not None:
            points = as_points(self.points, "ScaleBySchedule.points")
            object.__setattr__(self, "points", points)
            object.__setattr__(self, "_schedule", Curve(points))
        else:
            object.__setattr__(self, "_schedule", as_callable(self.call, "ScaleBySchedule.call", "step"))

    def factor_at(self, step: int) -> float:
        """The factor at a step.

        Args:
            step: the number of the step, from 0.

        Raises:
            TransformError: if the callable gives anything but a finite number.

        Example:
            >>> ScaleBySchedule(points=[(10, 1.0), (20, 0.5)]).factor_at(1000)
            0.5
        """
        return number_at(self._schedule, step, "ScaleBySchedule.call")

    def __call__(self, tensors: list[Tensor], context: Context) -> list[Tensor]:
        """Each tensor times the factor of the step."""
        return times_number(tensors, context, self.factor_at(context.step))


@dataclass(frozen=True)
class NormalizeByNorm(Transform):
    """Scale all tensors together to a chosen norm: `x * scale / (norm(all x) + eps)`.

    Norms of float16 and bfloat16 tensors are computed in float32. If one element is NaN, everything becomes NaN.

    Source: `optax.normalize_by_update_norm`; Hazan, Levy, Shalev-Shwartz, "Beyond Convexity: Stochastic Quasi-Convex
    Optimization", 2015.

    Args:
        scale: the target norm; any finite number, 1 by default.
        eps: added to the norm, so that zeros stay zeros; at least 0, 1e-6 by default.
        per_tensor: scale each tensor to that norm separately; False by default.

    Raises:
        RuleError: if a field is not in its range.

    Example:
        >>> NormalizeByNorm()([torch.tensor([30.0]), torch.tensor([40.0])], Context())
        [tensor([0.6000]), tensor([0.8000])]
        >>> NormalizeByNorm(eps=0, per_tensor=True)([torch.tensor([30.0]), torch.tensor([40.0])], Context())
        [tensor([1.]), tensor([1.])]
    """

    needs_all: ClassVar[bool] = True
    keeps_direction: ClassVar[bool] = True

    scale: float = 1.0
    _: KW_ONLY
    eps: float = 1e-6
    per_tensor: bool = False

    def __post_init__(self) -> None:
        check_factor(self, "scale")
        check_finite(self, "eps", at_least=0)
        check_flag(self, "per_tensor")
        # The norm of one tensor does not need the other tensors: with `per_tensor` the transform may also act during backward.
        object.__setattr__(self, "needs_all", not self.per_tensor)
        object.__setattr__(self, "keeps_direction", self.scale >= 0)

    def __call__(self, tensors: list[Tensor], context: Context) -> list[Tensor]:
        """Each tensor, scaled to the chosen norm."""

        def change(values: list[Tensor], owned: bool) -> list[Tensor]:
            if self.per_tensor:
                return times(values, [self.scale / (norm + self.eps) for norm in norms(values)], owned)
            return times(values, self.scale / (total_norm(values) + self.eps), owned)

        return over_values(tensors, context, change)


def times_number(tensors: list[Tensor], context: Context, factor: float) -> list[Tensor]:
    """Multiply tensors by one Python number, rounding once.

    Args:
        tensors: strided or sparse COO.
        context: says whether the tensors may be overwritten.
        factor: a finite number.
    """

    def run(group: list[Tensor], owned: bool) -> Sequence[Tensor]:
        wide = WIDER.get(group[0].dtype)
        if wide is not None and group[0].device.type == "cpu":
            # On the CPU, torch rounds a Python number to the dtype of the tensor first, but only in the in-place operation.
            # Multiply by a tensor instead, so that both forms give the same result.
            return scaled(group, torch.tensor(factor, dtype=wide.to_real(), device="cpu"), owned)
        return foreach("mul", group, factor, owned=owned)

    return over_values(tensors, context, lambda values, owned: in_groups(values, lambda group: run(group, owned)))
