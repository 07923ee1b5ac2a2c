"""Clipping of elements to an interval, and of tensors to a maximum norm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lightning_hooks.errors import RuleError, TransformError
from lightning_hooks.foreach import foreach, in_groups
from lightning_hooks.transforms._batch import over_values, scaled
from lightning_hooks.transforms._check import check_finite, check_norm_type
from lightning_hooks.transforms._norms import coefficient, norms, times, total_norm
from lightning_hooks.transforms.base import Context, Transform


@dataclass(frozen=True)
class ClipByValue(Transform):
    """Limit every element to an interval.

    A NaN stays NaN. The elements that a sparse tensor does not store stay zero.

    Source: `torch.nn.utils.clip_grad_value_`, with the same results for `-c` and `c`; `optax.clip`.

    Args:
        min: the minimum; None, the default, for no lower limit.
        max: the maximum; None, the default, for no upper limit.

    Raises:
        RuleError: if neither bound is given, a bound is not finite, or `min` is above `max`.
        TransformError: when called with a complex tensor, whose elements have no order.

    Example:
        >>> ClipByValue(min=-1.0, max=1.0)([torch.tensor([-3.0, 0.5, 2.0])], Context())
        [tensor([-1.0000,  0.5000,  1.0000])]
    """

    elementwise: ClassVar[bool] = True

    min: float | None = None
    _: KW_ONLY
    max: float | None = None

    def __post_init__(self) -> None:
        if self.min is None and self.max is None:
            raise RuleError("ClipByValue needs min or max, got neither")
        for bound in ("min", "max"):
            if getattr(self, bound) is not None:
                check_finite(self, bound)
        if self.min is not None and self.max is not None and self.min > self.max:
            raise RuleError(f"ClipByValue.min must not be above max, got min={self.min!r} and max={self.max!r}")

    def __call__(self, tensors: list[Tensor], context: Context) -> list[Tensor]:
        """Each tensor with its elements moved into the interval."""
        for index, tensor in enumerate(tensors):
            if tensor.is_complex():
                raise TransformError(
                    f"ClipByValue cannot order the complex elements of '{context.name_of(index)}' ({tensor.dtype}): "
                    "use ClipByNorm, or exclude it from the rule"
                )
        return over_values(tensors, context, self._change)

    def _change(self, values: list[Tensor], owned: bool) -> list[Tensor]:
        def run(group: list[Tensor]) -> Sequence[Tensor]:
            result: Sequence[Tensor] = group
            # Apply min first and max second, as torch does.
            for operation, bound in (("clamp_min", self.min), ("clamp_max", self.max)):
                if bound is not None:
                    result = foreach(operation, list(result), _within(bound, group[0].dtype), owned=owned)
            return result

        return in_groups(values, run)


@dataclass(frozen=True)
class ClipByNorm(Transform):
    """Scale each tensor down to a maximum norm: `x * min(1, max_norm / (norm(x) + 1e-6))`.

    Norms of float16 and bfloat16 tensors are computed in float32. A tensor whose norm is NaN becomes NaN.

    Source: `torch.nn.utils.clip_grad_norm_`, applied to one tensor at a time.

    Args:
        max_norm: the maximum norm of a tensor; above 0.
        norm_type: the order of the norm; above 0, infinity for the maximum magnitude, 2 by default.

    Raises:
        RuleError: if `max_norm` or `norm_type` is not in its range.

    Example:
        >>> ClipByNorm(1.0)([torch.tensor([3.0, 4.0]), torch.tensor([0.5])], Context())
        [tensor([0.6000, 0.8000]), tensor([0.5000])]
    """

    keeps_direction: ClassVar[bool] = True
    max_norm: float
    _: KW_ONLY
    norm_type: float = 2.0

    def __post_init__(self) -> None:
        check_finite(self, "max_norm", above=0)
        check_norm_type(self)

    def __call__(self, tensors: list[Tensor], context: Context) -> list[Tensor]:
        """Each tensor, scaled down where its norm is above `max_norm`."""
        return over_values(tensors, context, self._change)

    def _change(self, values: list[Tensor], owned: bool) -> list[Tensor]:
        def run(group: list[Tensor]) -> Sequence[Tensor]:
            factors = coefficient(torch.stack(norms(group, self.norm_type)), self.max_norm)
            return scaled(group, list(factors.unbind()), owned)

        return in_groups(values, run)


@dataclass(frozen=True)
class ClipByGlobalNorm(Transform):
    """Scale all tensors together down to a maximum norm: `x * min(1, max_norm / (norm(all x) + 1e-6))`.

    For dense float32 tensors the result is bit-equal to `torch.nn.utils.clip_grad_norm_`. Norms of float16 and bfloat16
    tensors are computed in float32. If one element is NaN, everything becomes NaN.

    Source: Pascanu, Mikolov, Bengio, "On the difficulty of training recurrent neural networks", 2013, in the formula of
    torch; `optax.clip_by_global_norm` does not add 1e-6.

    Args:
        max_norm: the maximum norm of all tensors, taken as one vector; above 0.
        norm_type: the order of the norm; above 0, infinity for the maximum magnitude, 2 by default.

    Raises:
        RuleError: if `max_norm` or `norm_type` is not in its range.

    Example:
        >>> ClipByGlobalNorm(1.0)([torch.tensor([3.0]), torch.tensor([4.0])], Context())
        [tensor([0.6000]), tensor([0.8000])]
    """

    keeps_direction: ClassVar[bool] = True
    needs_all: ClassVar[bool] = True

    max_norm: float
    _: KW_ONLY
    norm_type: float = 2.0

    def __post_init__(self) -> None:
        check_finite(self, "max_norm", above=0)
        check_norm_type(self)

    def __call__(self, tensors: list[Tensor], context: Context) -> list[Tensor]:
        """All tensors, scaled by one coefficient where their common norm is above `max_norm`."""

        def change(values: list[Tensor], owned: bool) -> list[Tensor]:
            context.factor = coefficient(total_norm(values, self.norm_type), self.max_norm)
            return times(values, context.factor, owned)

        return over_values(tensors, context, change)


def _within(bound: float, dtype: torch.dtype) -> float:
    # Limit the bound to the range of the dtype, because torch raises for a bound beyond it.
    greatest = torch.finfo(dtype).max
    return max(-greatest, min(greatest, bound))
