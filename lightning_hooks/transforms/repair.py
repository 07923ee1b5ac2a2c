"""Replacement of NaN and infinity."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lightning_hooks.errors import TransformError
from lightning_hooks.transforms._batch import over_each
from lightning_hooks.transforms._check import check_finite
from lightning_hooks.transforms._contract import written
from lightning_hooks.transforms.base import Context, Transform


@dataclass(frozen=True)
class ZeroNonFinite(Transform):
    """Replace NaN and infinity by zero or by given numbers; all other elements stay unchanged.

    The real and the imaginary part of a complex element are replaced separately.

    Source: `torch.nan_to_num`; `optax.zero_nans` does not replace infinities.

    Args:
        nan: the replacement of NaN; 0 by default.
        inf: the replacement of infinity; negative infinity becomes its negative; 0 by default.

    Raises:
        RuleError: if a replacement is not a finite number.
        TransformError: when called with a tensor whose dtype cannot hold a replacement.

    Example:
        >>> ZeroNonFinite(inf=9.0)([torch.tensor([1.0, float("nan"), float("-inf")])], Context())
        [tensor([ 1.,  0., -9.])]
    """

    elementwise: ClassVar[bool] = True
    repairs_nonfinite: ClassVar[bool] = True

    nan: float = 0.0
    _: KW_ONLY
    inf: float = 0.0

    def __post_init__(self) -> None:
        check_finite(self, "nan")
        check_finite(self, "inf")

    def __call__(self, tensors: list[Tensor], context: Context) -> list[Tensor]:
        """Each tensor with its non-finite elements replaced."""
        for index, tensor in enumerate(tensors):
            self._check_range(tensor.dtype, context.name_of(index))
        # Change one tensor at a time, because torch has no batched form of nan_to_num.
        return over_each(tensors, context, self._repaired)

    def _check_range(self, dtype: torch.dtype, name: str) -> None:
        # Refuse a replacement that the dtype cannot hold: torch would write an infinity for it.
        greatest = torch.finfo(dtype).max
        for field in ("nan", "inf"):
            value = getattr(self, field)
            if abs(value) > greatest:
                raise TransformError(
                    f"ZeroNonFinite.{field} is {value!r}, too large for '{name}': the greatest finite {dtype} is {greatest:g}"
                )

    def _repaired(self, value: Tensor, owned: bool) -> Tensor:
        # Do not write `-self.inf`: for `inf` = 0.0 it is -0.0.
        negative = 0.0 - self.inf
        if value.is_complex():
            parts = torch.view_as_real(value.resolve_conj())
            return written(value, torch.view_as_complex(torch.nan_to_num(parts, self.nan, self.inf, negative)), owned)
        if owned:
            return value.nan_to_num_(self.nan, self.inf, negative)
        return torch.nan_to_num(value, self.nan, self.inf, negative)
