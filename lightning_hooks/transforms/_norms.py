"""Norms of tensors, and products of tensors with factors that stay on the device."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from lightning_hooks.foreach import foreach, in_groups
from lightning_hooks.transforms._batch import WIDER, over_values, scaled
from lightning_hooks.transforms.base import Context


def dense_values(tensors: list[Tensor], context: Context) -> list[Tensor]:
    """The values of the tensors to take norms of: a dense tensor itself, or the coalesced values of a sparse tensor.

    The caller must not overwrite the values.

    Raises:
        TransformError: a tensor is nested or has another layout.
    """
    collected: list[Tensor] = []

    def collect(values: list[Tensor], owned: bool) -> list[Tensor]:
        collected.extend(values)
        return values

    over_values(tensors, dataclasses.replace(context, owned=False), collect)
    return collected


def norms(values: list[Tensor], norm_type: float = 2.0) -> list[Tensor]:
    """The norm of each dense tensor: a real scalar on its device, in the dtype to calculate in; 0 for an empty tensor."""
    return in_groups(values, lambda group: norms_of_group(group, norm_type))


def norms_of_group(group: list[Tensor], norm_type: float = 2.0) -> list[Tensor]:
    """As `norms`, for at least one tensor, all of one device and dtype."""
    wide = WIDER.get(group[0].dtype)
    nonempty = [value for value in group if value.numel()]
    nonempty_norms = foreach("norm", nonempty, norm_type, dtype=wide) if nonempty else ()
    if len(nonempty) == len(group):
        return list(nonempty_norms)
    remaining = iter(nonempty_norms)
    # Torch raises for the maximum of an empty tensor. Its norm, 0, stays in the list: without the zero, the norms would be
    # summed in another order than in torch.
    zero = group[0].new_zeros((), dtype=(wide or group[0].dtype).to_real())
    return [next(remaining) if value.numel() else zero for value in group]


def stack_scalars(scalars: list[Tensor]) -> Tensor:
    """Stack scalars to a vector on the device of the first, so that each further operation is a single kernel."""
    device = scalars[0].device
    is_one_device = all(scalar.device == device for scalar in scalars)
    return torch.stack(scalars if is_one_device else [scalar.to(device) for scalar in scalars])


def norm_of_norms(tensor_norms: list[Tensor], norm_type: float = 2.0) -> Tensor:
    """The norm of all tensors as one vector, from the norm of each tensor, at least one; on the device of the first."""
    total: Tensor = torch.linalg.vector_norm(stack_scalars(tensor_norms), norm_type)
    return total


def total_norm(values: list[Tensor], norm_type: float = 2.0) -> Tensor:
    """The norm of all dense tensors, at least one, as one vector: a real scalar on the device of the first."""
    return norm_of_norms(norms(values, norm_type), norm_type)


def coefficient(norm: Tensor, limit: float | Tensor) -> Tensor:
    """The factor that scales a tensor of this norm down to the limit, as in `torch.nn.utils.clip_grad_norm_`; at most 1."""
    # Clamp instead of using `if`, which would read the norm and wait for the device. clamp() keeps a NaN.
    return torch.clamp(limit / (norm + 1e-6), max=1.0)


def times(values: list[Tensor], factors: Tensor | list[Tensor], owned: bool) -> list[Tensor]:
    """Multiply tensors of any devices and dtypes by scalars, without waiting for a device.

    Args:
        values: dense tensors.
        factors: one scalar for all tensors, or one for each.
        owned: whether the tensors may be overwritten.
    """
    if isinstance(factors, Tensor):
        # Pass a common factor as a single scalar: for a list of scalars, torch would run one kernel for each tensor.
        return in_groups(values, lambda group: scaled(group, _for_group(factors, group), owned))

    def run(group: list[Tensor], group_factors: list[Tensor]) -> Sequence[Tensor]:
        return scaled(group, [_for_group(factor, group) for factor in group_factors], owned)

    return in_groups(values, run, factors)


def _for_group(factor: Tensor, group: list[Tensor]) -> Tensor:
    dtype = group[0].dtype
    return factor.to(device=group[0].device, dtype=WIDER.get(dtype, dtype).to_real())
