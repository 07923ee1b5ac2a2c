"""Clipping to a limit that depends on the parameter, on the number of elements, or on the tensor's module."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lightning_hooks.errors import TransformError
from lightning_hooks.foreach import by_kind, foreach
from lightning_hooks.transforms._batch import WIDER, multiplied, over_values
from lightning_hooks.transforms._check import check_count, check_factor, check_finite, check_norm_type
from lightning_hooks.transforms._contract import params_of, refuse_sparse
from lightning_hooks.transforms._norms import coefficient, norm_of_norms, norms, norms_of_group, stack_scalars, times
from lightning_hooks.transforms.base import Context, Transform


@dataclass(frozen=True)
class AdaptiveClip(Transform):
    """Limit the norm of each unit's gradient to a share of the norm of the unit's weights (AGC).

    `g * min(1, limit / norm(g))` with `limit = clipping * max(norm(p), eps)`, for each unit separately. A unit is the weights
    of one output: a slice along `unit_dim` of a matrix or a convolution kernel. A tensor with at most one dimension
    longer than 1 is a single unit. Norms of float16 and bfloat16 tensors are computed in float32. A unit whose norm is NaN
    becomes NaN.

    Source: Brock et al., "High-Performance Large-Scale Image Recognition Without Normalization", 2021. The results equal
    those of `optax.adaptive_grad_clip`, with two differences. torch has the outputs in the first dimension, JAX in the
    last. A three-dimensional tensor is the kernel of a 1D convolution here, and the weights of attention heads in optax.

    Args:
        clipping: the maximum ratio of the norms; above 0, 0.01 by default.
        eps: the minimum norm of a unit's weights, so that units that start at zero can change; above 0, 1e-3 by default.
        unit_dim: the dimension of the outputs, 0 by default; 1 for transposed convolutions.

    Raises:
        RuleError: if a field is not in its range.
        TransformError: when called with a tensor that has no parameter, or with a sparse one.

    Example:
        >>> weight, grad = torch.tensor([[3.0, 4.0], [0.0, 0.0]]), torch.ones(2, 2)
        >>> AdaptiveClip(clipping=0.1)([grad], Context(params=[weight]))[0][0]
        tensor([0.3536, 0.3536])
    """

    needs_params: ClassVar[bool] = True

    clipping: float = 0.01
    _: KW_ONLY
    eps: float = 1e-3
    unit_dim: int = 0

    def __post_init__(self) -> None:
        check_finite(self, "clipping", above=0)
        check_factor(self, "eps", above=0)
        check_count(self, "unit_dim")

    def __call__(self, tensors: list[Tensor], context: Context) -> list[Tensor]:
        """Each tensor, its units scaled down where they are above their limit."""
        refuse_sparse(self, tensors, context, "the units of what it does not store are unknown")
        params = params_of(self, tensors, context)
        is_single = [tensor.dim() < 2 or sum(size > 1 for size in tensor.shape) <= 1 for tensor in tensors]
        for index, tensor in enumerate(tensors):
            if not is_single[index] and self.unit_dim >= tensor.dim():
                raise TransformError(
                    f"AdaptiveClip.unit_dim is {self.unit_dim}, but '{context.name_of(index)}' has {tensor.dim()} dimensions"
                )

        def change(values: list[Tensor], owned: bool) -> list[Tensor]:
            results = list(values)
            for members in by_kind(values, params):
                # Sort tensors that are a single unit to the end, so that their norms are taken in one call.
                order = sorted(members, key=is_single.__getitem__)
                group, group_params = [values[i] for i in order], [params[i] for i in order]
                n_single = sum(is_single[i] for i in order)
                for i, result in zip(order, self._clip(group, group_params, n_single, owned), strict=True):
                    results[i] = result
            return results

        return over_values(tensors, context, change)

    def _clip(self, values: list[Tensor], params: list[Tensor], n_single: int, owned: bool) -> Sequence[Tensor]:
        """Clip tensors of one device and dtype; the last `n_single` tensors are single units."""
        dim, n_multi = self.unit_dim, len(values) - n_single
        factors = self._factor(_unit_norms(values, n_multi, dim), _unit_norms(params, n_multi, dim))
        sizes = [value.shape[dim] for value in values[:n_multi]] + [1] * n_single
        shapes = [[1] * dim + [-1] + [1] * (value.dim() - dim - 1) for value in values[:n_multi]]
        shapes += [[1] * value.dim() for value in values[n_multi:]]
        pairs = zip(factors.split(sizes), shapes, strict=True)
        # The factor of a tensor with one dimension, such as a bias, has one dimension too, so it needs no view.
        return multiplied(values, [factor if len(shape) == 1 else factor.view(shape) for factor, shape in pairs], owned)

    def _factor(self, norm: Tensor, param_norm: Tensor) -> Tensor:
        limit = param_norm.to(device=norm.device, dtype=norm.dtype).clamp(min=self.eps).mul_(self.clipping)
        # The factor of a unit below its limit is exactly 1, so the unit stays bit-equal. As in the source, the divisor is at
        # least 1e-6, which matters if the limit is below 1e-6.
        return torch.where(norm < limit, 1.0, limit.div_(norm.clamp(min=1e-6)))


@dataclass(frozen=True)
class ClipByBlockRMS(Transform):
    """Scale each tensor down to a maximum root mean square: `x / max(1, rms(x) / threshold)`.

    Unlike a norm, the root mean square does not grow with the number of elements, so one threshold fits large and
    small tensors. Elements that a sparse tensor does not store count as zeros.

    Source: `optax.clip_by_block_rms`; Shazeer and Stern, "Adafactor: Adaptive Learning Rates with Sublinear Memory Cost",
    2018, section 6, with a threshold of 1.

    Args:
        threshold: the maximum root mean square of a tensor; above 0.

    Raises:
        RuleError: if the threshold is not in its range.

    Example:
        >>> ClipByBlockRMS(1.0)([torch.tensor([3.0, -3.0]), torch.tensor([0.5])], Context())
        [tensor([ 1., -1.]), tensor([0.5000])]
    """

    keeps_direction: ClassVar[bool] = True
    threshold: float

    def __post_init__(self) -> None:
        check_finite(self, "threshold", above=0)

    def __call__(self, tensors: list[Tensor], context: Context) -> list[Tensor]:
        """Each tensor, scaled down where its root mean square is above the threshold."""
        roots = [max(1, tensor.numel()) ** 0.5 for tensor in tensors]

        def change(values: list[Tensor], owned: bool) -> list[Tensor]:
            # Pass the divisors as Python numbers: a tensor would have to be copied to the device.
            factors = torch.clamp(self.threshold / stack_scalars(list(foreach("div", norms(values), roots))), max=1.0)
            return times(values, list(factors.unbind()), owned)

        return over_values(tensors, context, change)


@dataclass(frozen=True)
class PerModuleClip(Transform):
    """Scale the tensors of each module down to a maximum common norm: `x * min(1, max_norm / (norm(module) + 1e-6))`.

    The direct parameters of a module, such as `encoder.0.weight` and `encoder.0.bias`, share one norm and one factor.
    Parameters are grouped by their names up to the last dot. If a rule matches only one of them, its own norm is used.
    A NaN does not spread to other modules.

    Source: `torch.nn.utils.clip_grad_norm_`, applied to one module at a time.

    Args:
        max_norm: the maximum norm of a module's tensors, taken as one vector; above 0.
        norm_type: the order of the norm; above 0, infinity for the maximum magnitude, 2 by default.

    Raises:
        RuleError: if `max_norm` or `norm_type` is not in its range.
        TransformError: when called without the names of the tensors.

    Example:
        >>> names = ["head.weight", "head.bias", "body.bias"]
        >>> PerModuleClip(1.0)([torch.tensor([3.0]), torch.tensor([4.0]), torch.tensor([0.5])], Context(names=names))
        [tensor([0.6000]), tensor([0.8000]), tensor([0.5000])]
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
        """All tensors; the tensors of one module are scaled by one coefficient."""
        if len(context.names) < len(tensors):
            raise TransformError(
                f"PerModuleClip tells modules by the names of their parameters, and got {len(context.names)} names for "
                f"{len(tensors)} tensors"
            )
        modules = [name.rpartition(".")[0] for name in context.names]

        def change(values: list[Tensor], owned: bool) -> list[Tensor]:
            return times(values, self._factors(norms(values, self.norm_type), modules), owned)

        return over_values(tensors, context, change)

    def _factors(self, tensor_norms: list[Tensor], modules: Sequence[str]) -> list[Tensor]:
        by_module: dict[str, list[Tensor]] = {}
        for module, norm in zip(modules, tensor_norms, strict=False):
            by_module.setdefault(module, []).append(norm)
        factors = {
            module: coefficient(norm_of_norms(members, self.norm_type), self.max_norm) for module, members in by_module.items()
        }
        return [factors[module] for module in modules[: len(tensor_norms)]]


def _unit_norms(values: list[Tensor], n_multi: int, dim: int) -> Tensor:
    """The norms of all units of all tensors, as one vector [units].

    Args:
        values: tensors of one device and dtype.
        n_multi: the number of tensors, at the start of the list, that have several units; each later tensor is one unit.
        dim: the dimension whose indices number the units.
    """
    wide = WIDER.get(values[0].dtype)
    other_dims = {n: [other for other in range(n) if other != dim] for n in {value.dim() for value in values[:n_multi]}}
    # Take the norms tensor by tensor, because torch has no batched norm along a dimension.
    unit_norms = [torch.linalg.vector_norm(value, dim=other_dims[value.dim()], dtype=wide) for value in values[:n_multi]]
    return torch.cat([*unit_norms, torch.stack(norms_of_group(values[n_multi:]))] if n_multi < len(values) else unit_norms)
