"""Norms of one and of many tensors, and products with factors that stay on the device."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from lightning_hooks.transforms._batch import WIDER, foreach, in_groups, over_values, scaled
from lightning_hooks.transforms.base import Context


def dense_values(tensors: list[Tensor], context: Context) -> list[Tensor]:
    """The values to take a norm of: the tensor itself, or the coalesced values of a sparse one; not to be overwritten.

    Raises:
        TransformError: for a nested tensor or another layout.
    """
    seen: list[Tensor] = []

    def note(values: list[Tensor], owned: bool) -> list[Tensor]:
        seen.extend(values)
        return values

    over_values(tensors, dataclasses.replace(context, owned=False), note)
    return seen


def norms(values: list[Tensor], norm_type: float = 2.0) -> list[Tensor]:
    """The norm of each dense tensor: a real scalar on its device, of the dtype to calculate in; 0 where there is no element."""
    return in_groups(values, lambda group: norms_alike(group, norm_type))


def norms_alike(group: list[Tensor], norm_type: float = 2.0) -> list[Tensor]:
    """The norm of each tensor, as `norms` has it, for at least one tensor, all of one device and dtype."""
    wide = WIDER.get(group[0].dtype)
    full = [value for value in group if value.numel()]
    each = foreach("norm", full, norm_type, dtype=wide) if full else ()
    if len(full) == len(group):
        return list(each)
    found = iter(each)
    # The greatest of no elements is an error in torch. The zero stays in the list: without it, the sum over the norms
    # would be taken in another order than torch takes it.
    zero = group[0].new_zeros((), dtype=(wide or group[0].dtype).to_real())
    return [next(found) if value.numel() else zero for value in group]


def together(each: list[Tensor]) -> Tensor:
    """Scalars as one vector on the device of the first, so that what is calculated with them is a few operations, not many."""
    device = each[0].device
    alike = all(scalar.device == device for scalar in each)
    return torch.stack(each if alike else [scalar.to(device) for scalar in each])


def norm_of_norms(each: list[Tensor], norm_type: float = 2.0) -> Tensor:
    """The norm of all tensors seen as one vector, from the norms of each, at least one; on the device of the first."""
    total: Tensor = torch.linalg.vector_norm(together(each), norm_type)
    return total


def total_norm(values: list[Tensor], norm_type: float = 2.0) -> Tensor:
    """The norm of all dense tensors, at least one, seen as one vector: a real scalar on the device of the first."""
    return norm_of_norms(norms(values, norm_type), norm_type)


def coefficient(norm: Tensor, limit: float | Tensor) -> Tensor:
    """What scales something of this norm down to the limit, as `torch.nn.utils.clip_grad_norm_` has it; 1 where it is below."""
    # Clamping where an `if` would do: reading the norm to decide would wait for the device. A NaN passes the clamp.
    return torch.clamp(limit / (norm + 1e-6), max=1.0)


def times(values: list[Tensor], factors: Tensor | list[Tensor], owned: bool) -> list[Tensor]:
    """Multiply tensors of any dtypes and devices by scalars, without waiting for a device.

    Args:
        values: dense.
        factors: a scalar for all, or one for each.
    """
    if isinstance(factors, Tensor):
        # One for all goes to torch as one: with a list of scalars its kernel would run once for each tensor.
        return in_groups(values, lambda group: scaled(group, _for_group(factors, group), owned))

    def run(group: list[Tensor], own: list[Tensor]) -> Sequence[Tensor]:
        return scaled(group, [_for_group(factor, group) for factor in own], owned)

    return in_groups(values, run, factors)


def _for_group(factor: Tensor, group: list[Tensor]) -> Tensor:
    dtype = group[0].dtype
    return factor.to(device=group[0].device, dtype=WIDER.get(dtype, dtype).to_real())
