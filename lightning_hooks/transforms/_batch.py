"""Lists of tensors as the batched operations of torch want them: dense values, grouped by device and dtype."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from lightning_hooks.errors import TransformError
from lightning_hooks.private import private
from lightning_hooks.transforms.base import Context

Change = Callable[[list[Tensor], bool], list[Tensor]]
"""(dense values, whether they may be overwritten) to the new values."""

WIDER = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.complex32: torch.complex64}
"""The dtype to calculate in, for those whose own range or precision is too small."""


def over_values(tensors: list[Tensor], context: Context, change: Change) -> list[Tensor]:
    """Apply `change` to the dense values: the tensor itself, or the coalesced values of a sparse one.

    What a sparse tensor does not store stays not stored.

    Args:
        tensors: strided or sparse COO.
        change: called once with all values, not at all for an empty list.

    Raises:
        TransformError: for a nested tensor or another layout.
    """
    if not tensors:
        return tensors if context.owned else []
    if all(tensor.layout is torch.strided and not tensor.is_nested for tensor in tensors):  # nearly always
        changed = change(list(tensors), context.owned)
        return tensors if context.owned else changed
    # Coalescing sums the entries that share an index: without it a norm of the values would be wrong. On CUDA it waits
    # for the device, as the number of entries left is a size; dense tensors never wait.
    _check_layouts(tensors, context)
    whole = [tensor.coalesce() if tensor.is_sparse else tensor for tensor in tensors]
    values = [tensor.values() if tensor.is_sparse else tensor for tensor in whole]
    changed = change(values, context.owned)
    result = [_like(tensor, value) if tensor.is_sparse else value for tensor, value in zip(whole, changed, strict=True)]
    if not context.owned:
        return result
    for tensor, merged, new in zip(tensors, whole, result, strict=True):
        # A coalesced tensor was overwritten through its values; an uncoalesced one was merged into a copy.
        if merged is not tensor:
            tensor.copy_(new)
    return tensors


def over_each(tensors: list[Tensor], context: Context, change: Callable[..., Tensor], *beside: Sequence[Any]) -> list[Tensor]:
    """As `over_values`, one tensor at a time.

    Args:
        change: from dense values, whether they may be overwritten, and what other lists have for them, to the new values.
        beside: the other lists, with one item for each tensor.
    """

    def each(values: list[Tensor], owned: bool) -> list[Tensor]:
        return [change(value, owned, *own) for value, *own in zip(values, *beside, strict=True)]

    return over_values(tensors, context, each)


def in_groups(values: list[Tensor], run: Callable[..., Sequence[Tensor]], *beside: list[Tensor]) -> list[Tensor]:
    """Run a batched operation once per device and dtype: one kernel takes only tensors that agree in both.

    Args:
        values: any mix.
        run: from a group, and those of the other lists, to as many results.
        beside: other lists, of which a group has the tensors at the same indices.

    Returns:
        The results in the order of `values`.
    """
    results = list(values)
    for members in by_kind(values, *beside):
        groups = ([tensors[i] for i in members] for tensors in (values, *beside))
        for index, result in zip(members, run(*groups), strict=True):
            results[index] = result
    return results


def by_kind(*lists: list[Tensor]) -> list[list[int]]:
    """The indices of tensors that one batched operation takes together: equal in device and dtype in every list.

    Args:
        lists: of equal length; the tensors of one index go into one operation.

    Example:
        >>> import torch
        >>> by_kind([torch.ones(1), torch.ones(1).half(), torch.ones(2)])
        [[0, 2], [1]]
    """
    first = [(tensors[0].device, tensors[0].dtype) for tensors in lists if tensors]
    alike = all(
        tensor.dtype is dtype and tensor.device == device
        for tensors, (device, dtype) in zip(lists, first, strict=False)
        for tensor in tensors
    )
    if alike:  # nearly always
        return [list(range(len(lists[0])))] if first else []
    groups: dict[tuple[object, ...], list[int]] = {}
    for index, together in enumerate(zip(*lists, strict=True)):
        groups.setdefault(tuple((tensor.device, tensor.dtype) for tensor in together), []).append(index)
    return list(groups.values())


def foreach(operation: str, group: list[Tensor], *args: Any, owned: bool = False, **options: Any) -> Sequence[Tensor]:
    """Run `torch._foreach_<operation>` on tensors of one device and dtype, in place where they are owned.

    Args:
        operation: the name between `_foreach_` and the final underscore of the in-place form.
        group: dense tensors.
        args: the further arguments of the operation; a list has one for each tensor.
    """
    result = _batched(operation, owned)(group, *args, **options)
    return group if owned else result


@cache
def _batched(operation: str, owned: bool) -> Callable[..., Sequence[Tensor]]:
    def find() -> Callable[..., Sequence[Tensor]]:
        if [float(each) for each in torch._foreach_mul([torch.full((1,), 2.0, device="cpu")], 3.0)] != [6.0]:
            raise RuntimeError("they do something else in this torch")
        found: Callable[..., Sequence[Tensor]] = getattr(torch, f"_foreach_{operation}{'_' if owned else ''}")
        return found

    one_by_one: Callable[..., Sequence[Tensor]] = partial(_one_by_one, operation, owned)
    return private("torch._foreach_*", find, one_by_one, "transforms make one call per tensor; the same numbers up to rounding")


def _one_by_one(operation: str, owned: bool, group: list[Tensor], *args: Any, **options: Any) -> list[Tensor]:
    def run(tensor: Tensor, *own: Any) -> Tensor:
        one: Any = torch.linalg.vector_norm if operation == "norm" else getattr(Tensor, f"{operation}{'_' * owned}")
        result: Tensor = one(tensor, *own, **options)
        return result

    return [run(each, *(a[i] if isinstance(a, list) else a for a in args)) for i, each in enumerate(group)]


def scaled(group: list[Tensor], factors: Tensor | list[Tensor], owned: bool) -> Sequence[Tensor]:
    """Multiply tensors of one device and dtype by scalars on that device, without waiting for it.

    Args:
        group: dense tensors.
        factors: one scalar for all, or one for each; of the real dtype that the group is calculated in.
    """
    if group[0].dtype not in WIDER:
        return foreach("mul", group, factors, owned=owned)
    each = factors if isinstance(factors, list) else [factors] * len(group)
    # Torch rounds a scalar tensor to the dtype of the other operand, and a small coefficient would be 0 in float16.
    full = [factor.reshape((1,) * value.dim()) for value, factor in zip(group, each, strict=True)]
    return multiplied(group, full, owned)


def multiplied(group: list[Tensor], factors: list[Tensor], owned: bool) -> Sequence[Tensor]:
    """Multiply tensors of one device and dtype by tensors that broadcast to them; calculated wide, rounded once.

    Args:
        group: dense tensors.
        factors: of as many dimensions as each, so that they take part in the promotion; of the real dtype that the group is
            calculated in.
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


def _like(tensor: Tensor, values: Tensor) -> Tensor:
    # The indices come from a coalesced tensor: checking them again would wait for the device.
    return torch.sparse_coo_tensor(tensor.indices(), values, tensor.shape, is_coalesced=True, check_invariants=False)
