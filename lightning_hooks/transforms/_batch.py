"""Operations on the dense values of a list of tensors, calculated in a dtype whose range and precision suffice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from lightning_hooks.errors import TransformError
from lightning_hooks.foreach import foreach
from lightning_hooks.transforms.base import Context

Change = Callable[[list[Tensor], bool], list[Tensor]]
"""Called with (dense values, whether they may be overwritten); returns the new values."""

WIDER = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.complex32: torch.complex64}
"""The dtype to calculate in, for each dtype whose own range or precision is too small."""


def over_values(tensors: list[Tensor], context: Context, change: Change) -> list[Tensor]:
    """Apply `change` to the dense values: the tensor itself, or the coalesced values of a sparse one.

    The elements that a sparse tensor does not store stay zero.

    Args:
        tensors: strided or sparse COO.
        context: says whether the tensors may be overwritten.
        change: called once with all values; not called for an empty list.

    Raises:
        TransformError: a tensor is nested or has another layout.
    """
    if not tensors:
        return tensors if context.owned else []
    # Pass dense tensors on as they are: usually all tensors are dense.
    if all(tensor.layout is torch.strided and not tensor.is_nested for tensor in tensors):
        changed = change(list(tensors), context.owned)
        return tensors if context.owned else changed
    # Coalescing sums the entries that share an index: without coalescing, a norm of the values would be wrong. On CUDA the host
    # waits until coalescing is done, because the number of remaining entries is a size of the result.
    _check_layouts(tensors, context)
    coalesced = [tensor.coalesce() if tensor.is_sparse else tensor for tensor in tensors]
    values = [tensor.values() if tensor.is_sparse else tensor for tensor in coalesced]
    changed = change(values, context.owned)
    result = [
        _sparse_like(tensor, value) if tensor.is_sparse else value for tensor, value in zip(coalesced, changed, strict=True)
    ]
    if not context.owned:
        return result
    for tensor, same_or_copy, new in zip(tensors, coalesced, result, strict=True):
        # A coalesced tensor was overwritten through its values. For any other sparse tensor coalesce() returned a copy.
        if same_or_copy is not tensor:
            tensor.copy_(new)
    return tensors


def over_each(tensors: list[Tensor], context: Context, change: Callable[..., Tensor], *beside: Sequence[Any]) -> list[Tensor]:
    """As `over_values`, one tensor at a time.

    Args:
        tensors: strided or sparse COO.
        context: says whether the tensors may be overwritten.
        change: called for each tensor with its dense values, whether they may be overwritten, and the tensor's item of each
            list in `beside`; returns the new values.
        beside: further lists, with one item for each tensor.
    """

    def change_all(values: list[Tensor], owned: bool) -> list[Tensor]:
        return [change(value, owned, *items) for value, *items in zip(values, *beside, strict=True)]

    return over_values(tensors, context, change_all)


def scaled(group: list[Tensor], factors: Tensor | list[Tensor], owned: bool) -> Sequence[Tensor]:
    """Multiply tensors of one device and dtype by scalars on that device, without waiting for the device.

    Args:
        group: dense tensors.
        factors: one scalar for all tensors or one for each, in the real dtype that the group is calculated in (`WIDER`).
        owned: whether the tensors may be overwritten.
    """
    if group[0].dtype not in WIDER:
        return foreach("mul", group, factors, owned=owned)
    scalars = factors if isinstance(factors, list) else [factors] * len(group)
    # Give each factor the dimensions of its tensor: torch rounds a tensor without dimensions to the dtype of the other
    # operand, and a small coefficient would be 0 in float16.
    with_dims = [scalar.reshape((1,) * value.dim()) for value, scalar in zip(group, scalars, strict=True)]
    return multiplied(group, with_dims, owned)


def multiplied(group: list[Tensor], factors: list[Tensor], owned: bool) -> Sequence[Tensor]:
    """Multiply tensors of one device and dtype by tensors that broadcast to them, in the wider dtype, and round once.

    Args:
        group: dense tensors.
        factors: one for each tensor, with as many dimensions as the tensor, so that torch promotes the product to its dtype:
            the real dtype that the group is calculated in (`WIDER`).
        owned: whether the tensors may be overwritten.
    """
    if group[0].dtype not in WIDER:
        return foreach("mul", group, factors, owned=owned)
    if owned:
        return [value.mul_(factor) for value, factor in zip(group, factors, strict=True)]
    return [(value * factor).to(value.dtype) for value, factor in zip(group, factors, strict=True)]


def _check_layouts(tensors: list[Tensor], context: Context) -> None:
    for index, tensor in enumerate(tensors):
        if tensor.is_nested or tensor.layout not in (torch.strided, torch.sparse_coo):
            kind = "nested" if tensor.is_nested else f"of layout {tensor.layout}"
            raise TransformError(
                f"the tensor of '{context.name_of(index)}' is {kind}, and only strided and sparse COO tensors can be "
                "transformed: exclude it from the rule"
            )


def _sparse_like(tensor: Tensor, values: Tensor) -> Tensor:
    # Skip the check of the indices, which come from a coalesced tensor: checking them again would wait for the device.
    return torch.sparse_coo_tensor(tensor.indices(), values, tensor.shape, is_coalesced=True, check_invariants=False)
