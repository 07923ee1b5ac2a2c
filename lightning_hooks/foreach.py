"""Batched operations on a list of tensors, in groups of one device and dtype."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from lightning_hooks.private import private


def in_groups(values: list[Tensor], run: Callable[..., Sequence[Tensor]], *beside: list[Tensor]) -> list[Tensor]:
    """Run a batched operation once per device and dtype: one kernel takes only tensors that agree in both.

    Args:
        values: tensors of any devices and dtypes.
        run: called for each group with its values and, for each list in `beside`, the tensors at the same indices; returns
            one result for each value.
        beside: further lists, with one tensor for each value.

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
    """Group the indices whose tensors agree in device and dtype, in every list: one batched operation can take a group.

    Args:
        lists: of equal length; the tensors of one index go into one operation.

    Example:
        >>> import torch
        >>> by_kind([torch.ones(1), torch.ones(1).half(), torch.ones(2)])
        [[0, 2], [1]]
    """
    first = [(tensors[0].device, tensors[0].dtype) for tensors in lists if tensors]
    is_one_group = all(
        tensor.dtype is dtype and tensor.device == device
        for tensors, (device, dtype) in zip(lists, first, strict=False)
        for tensor in tensors
    )
    if is_one_group:
        return [list(range(len(lists[0])))] if first else []
    groups: dict[tuple[object, ...], list[int]] = {}
    for index, operands in enumerate(zip(*lists, strict=True)):
        groups.setdefault(tuple((tensor.device, tensor.dtype) for tensor in operands), []).append(index)
    return list(groups.values())


def foreach(operation: str, group: list[Tensor], *args: Any, owned: bool = False, **options: Any) -> Sequence[Tensor]:
    """Run `torch._foreach_<operation>` on tensors of one device and dtype, in place if they are owned.

    Args:
        operation: the name between `_foreach_` and the final underscore of the in-place form.
        group: dense tensors.
        args: further arguments of the operation; a list holds one argument for each tensor.
        owned: whether the tensors may be overwritten; False by default.
        options: keyword arguments of the operation.
    """
    result = _batched(operation, owned)(group, *args, **options)
    return group if owned else result


@cache
def _batched(operation: str, owned: bool) -> Callable[..., Sequence[Tensor]]:
    def find() -> Callable[..., Sequence[Tensor]]:
        if [float(product) for product in torch._foreach_mul([torch.full((1,), 2.0, device="cpu")], 3.0)] != [6.0]:
            raise RuntimeError("torch._foreach_mul gave a wrong product")
        batched: Callable[..., Sequence[Tensor]] = getattr(torch, f"_foreach_{operation}{'_' if owned else ''}")
        return batched

    one_by_one: Callable[..., Sequence[Tensor]] = partial(_one_by_one, operation, owned)
    return private("torch._foreach_*", find, one_by_one, "one call per tensor; the same numbers up to rounding")


def _one_by_one(operation: str, owned: bool, group: list[Tensor], *args: Any, **options: Any) -> list[Tensor]:
    def run(tensor: Tensor, *arguments: Any) -> Tensor:
        function: Any = torch.linalg.vector_norm if operation == "norm" else getattr(Tensor, f"{operation}{'_' * owned}")
        result: Tensor = function(tensor, *arguments, **options)
        return result

    return [run(tensor, *(a[i] if isinstance(a, list) else a for a in args)) for i, tensor in enumerate(group)]
