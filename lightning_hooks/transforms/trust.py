"""Scaling of gradients by the norm of their parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lightning_hooks.foreach import foreach
from lightning_hooks.transforms._batch import over_values
from lightning_hooks.transforms._check import check_factor, check_finite
from lightning_hooks.transforms._contract import params_of
from lightning_hooks.transforms._norms import norms, stack_scalars, times
from lightning_hooks.transforms.base import Context, Transform


@dataclass(frozen=True)
class TrustRatio(Transform):
    """Scale each gradient to the norm of its parameter: `g * trust_coefficient * norm(p) / (norm(g) + eps)`.

    The factor is 1 where either norm is 0, so that a parameter that starts at zero can change. LARS and LAMB apply
    this after momentum or Adam; on a gradient it makes plain SGD move each tensor by the same fraction of its norm.

    Source: You, Gitman, Ginsburg, "Large Batch Training of Convolutional Networks", 2017, as in
    `optax.scale_by_trust_ratio`.

    Args:
        min_norm: the minimum of both norms; at least 0, the default.
        trust_coefficient: the factor of the ratio; above 0, 1 by default. LARS uses 1e-3.
        eps: added to the norm of the gradient; at least 0, the default.

    Raises:
        RuleError: if a field is not in its range.
        TransformError: when called with a tensor that has no parameter.

    Example:
        >>> TrustRatio()([torch.tensor([0.0, 0.5])], Context(params=[torch.tensor([3.0, 4.0])]))
        [tensor([0., 5.])]
    """

    needs_params: ClassVar[bool] = True

    min_norm: float = 0.0
    _: KW_ONLY
    trust_coefficient: float = 1.0
    eps: float = 0.0

    def __post_init__(self) -> None:
        check_factor(self, "min_norm", at_least=0)
        check_factor(self, "trust_coefficient", above=0)
        check_finite(self, "eps", at_least=0)

    def __call__(self, tensors: list[Tensor], context: Context) -> list[Tensor]:
        """Each gradient, scaled by its trust ratio."""

        def factors(param_norms: Tensor, values: list[Tensor]) -> Tensor:
            norm, param_norm = stack_scalars(norms(values)).clamp(min=self.min_norm), param_norms.clamp(min=self.min_norm)
            return torch.where((param_norm == 0) | (norm == 0), 1.0, self.trust_coefficient * param_norm / (norm + self.eps))

        return _by_params(self, tensors, context, factors)


@dataclass(frozen=True)
class ScaleByParamNorm(Transform):
    """Multiply each gradient by the norm of its parameter: `g * max(norm(p), min_norm)`.

    Source: `optax.scale_by_param_block_norm`, whose `min_scale` is `min_norm` here.

    Args:
        min_norm: the minimum factor, so that a parameter that starts at zero can change; at least 0, 1e-3 by default.

    Raises:
        RuleError: if `min_norm` is not in its range.
        TransformError: when called with a tensor that has no parameter.

    Example:
        >>> ScaleByParamNorm()([torch.tensor([0.0, 0.5])], Context(params=[torch.tensor([3.0, 4.0])]))
        [tensor([0.0000, 2.5000])]
    """

    needs_params: ClassVar[bool] = True

    min_norm: float = 1e-3

    def __post_init__(self) -> None:
        check_factor(self, "min_norm", at_least=0)

    def __call__(self, tensors: list[Tensor], context: Context) -> list[Tensor]:
        """Each gradient times the norm of its parameter."""
        return _by_params(self, tensors, context, lambda norms, values: norms.clamp(min=self.min_norm))


@dataclass(frozen=True)
class ScaleByParamRMS(Transform):
    """Multiply each gradient by the root mean square of its parameter: `g * max(rms(p), min_scale)`.

    Source: `optax.scale_by_param_block_rms`; Shazeer and Stern, "Adafactor: Adaptive Learning Rates with Sublinear Memory
    Cost", 2018, section 8.

    Args:
        min_scale: the minimum factor, so that a parameter that starts at zero can change; at least 0, 1e-3 by default.

    Raises:
        RuleError: if `min_scale` is not in its range.
        TransformError: when called with a tensor that has no parameter.

    Example:
        >>> ScaleByParamRMS()([torch.tensor([0.0, 0.5])], Context(params=[torch.tensor([4.0, -4.0])]))
        [tensor([0., 2.])]
    """

    needs_params: ClassVar[bool] = True

    min_scale: float = 1e-3

    def __post_init__(self) -> None:
        check_factor(self, "min_scale", at_least=0)

    def __call__(self, tensors: list[Tensor], context: Context) -> list[Tensor]:
        """Each gradient times the root mean square of its parameter."""
        roots = [max(1, tensor.numel()) ** 0.5 for tensor in tensors]
        return _by_params(self, tensors, context, lambda norms, values: norms.clamp(min=self.min_scale), roots)


def _by_params(
    owner: Transform,
    tensors: list[Tensor],
    context: Context,
    factors: Callable[[Tensor, list[Tensor]], Tensor],
    divide_by: list[float] | None = None,
) -> list[Tensor]:
    """Multiply each tensor by a factor that depends on the norm of its parameter.

    Args:
        owner: the transform, for messages.
        tensors: the gradients.
        context: holds their parameters.
        factors: called with (the norms of the parameters, the values of the gradients); returns a vector of factors.
        divide_by: a divisor for each norm of a parameter; None, the default, for none.
    """
    params = params_of(owner, tensors, context)

    def change(values: list[Tensor], owned: bool) -> list[Tensor]:
        param_norms = norms(params)
        if divide_by is not None:
            # Pass the divisors as Python numbers: a tensor would have to be copied to the device.
            param_norms = list(foreach("div", param_norms, divide_by))
        return times(values, list(factors(stack_scalars(param_norms), values).unbind()), owned)

    return over_values(tensors, context, change)
