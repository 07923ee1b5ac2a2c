"""Restore one tensor: its memory and elements, its gradient, whether it needs one, and the hooks on it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lightning_hooks.snapshot.contents import contents_of, put_contents
from lightning_hooks.tensor_kinds import is_dense, same_bits, version_of


def copy_of(tensor: Tensor) -> Tensor | None:
    """The elements of a tensor; None if code cannot write to its elements one by one.

    Example:
        >>> copy_of(torch.zeros(1).expand(3)) is None
        True
    """
    if tensor.is_meta or any(stride == 0 and size > 1 for stride, size in zip(_strides(tensor), tensor.shape, strict=False)):
        return None
    return tensor.detach().clone()


def saved_tensor(tensor: Tensor, elements: Tensor | None) -> Callable[[], None]:
    """A function that puts back the state of a tensor. No write of it counts as a change of the tensor for autograd.

    Args:
        tensor: its gradient, `requires_grad` and hooks are restored; and its memory, if code has replaced that.
        elements: what `copy_of` gave; None to leave the elements as they are.
    """
    data, version = tensor.data, version_of(tensor)
    grad, needs_grad = tensor.grad if tensor.is_leaf else None, tensor.requires_grad
    hooks = getattr(tensor, "_backward_hooks", None)
    kept_hooks = None if hooks is None else contents_of(hooks) or []

    def restore() -> None:
        # If code has replaced the memory of the tensor, assign `data` to bring the old memory back. Neither this nor a write to
        # `data` counts as a change of the tensor for autograd.
        if _memory(tensor) != _memory(data) or tensor.shape != data.shape or tensor.dtype != data.dtype:
            tensor.data = data
        # The version stays where a batch norm writes its statistics, or code writes to `data`, so the bits are compared too.
        # Do not write to a tensor that is the same: its memory may be a file that is open for reading only.
        if elements is not None and not (version_of(tensor) == version and is_dense(tensor) and same_bits(tensor, elements)):
            tensor.data.copy_(elements)
        if tensor.is_leaf:
            tensor.requires_grad_(needs_grad)
            tensor.grad = grad
        if kept_hooks is not None:
            put_contents(hooks, kept_hooks)
        elif tensor._backward_hooks is not None:
            tensor._backward_hooks = None

    return restore


def _memory(tensor: Tensor) -> int | None:
    return tensor.data_ptr() if tensor.layout == torch.strided and not tensor.is_nested and not tensor.is_meta else None


def _strides(tensor: Tensor) -> tuple[int, ...]:
    return tuple(tensor.stride()) if tensor.layout == torch.strided and not tensor.is_nested else ()
