"""Masks of a batch: what says which parts of the other tensors count, as a padding mask or the lengths of sequences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import torch
from torch import Tensor

from lightning_hooks.checks.batch import changed_copy, kind_of
from lightning_hooks.nested.tensors import named_tensors

_FAR: Final = -1e4
"""A number that is added to a score, so that a softmax gives nothing for it, is below this one."""


def is_mask(tensor: Tensor) -> bool:
    """Whether a tensor holds zeros and ones only, or zeros and numbers that a softmax takes for minus infinity."""
    return _is_of_ones(tensor) or _is_added(tensor)


def flipped(tensor: Tensor) -> Tensor | None:
    """The opposite of a mask; None if the tensor is no mask."""
    if tensor.dtype == torch.bool:
        return ~tensor
    if tensor.is_complex():
        return None
    if _is_of_ones(tensor):
        return 1 - tensor
    return torch.where(tensor == 0, tensor.min(), 0).to(tensor.dtype) if _is_added(tensor) else None


def _is_of_ones(tensor: Tensor) -> bool:
    return bool(((tensor == 0) | (tensor == 1)).all())


def _is_added(tensor: Tensor) -> bool:
    if not tensor.is_floating_point():
        return False
    # Torch orders no floats of one byte.
    scores = tensor.float() if tensor.element_size() == 1 else tensor
    return bool(((scores == 0) | (scores < _FAR)).all())


def opened(batch: Any, hidden: str) -> Iterator[tuple[str, Any]]:
    """The name of each tensor that may hide a part of another one, with a copy of the batch in which it hides nothing.

    A mask may mean by a one that a part counts or that it does not, so there is a copy of either kind.

    Args:
        batch: of a training.
        hidden: the name of the tensor of which a part may be hidden.
    """
    named = dict(named_tensors(batch))
    size = named[hidden].shape[-1] if named[hidden].dim() else 0
    for name, tensor in named.items():
        if name == hidden or kind_of(tensor) or not tensor.numel():
            continue
        for number in _open_numbers(tensor, size):

            def of(each: str, old: Tensor, name: str = name, number: float = number) -> Tensor:
                return torch.full_like(old, number) if each == name else old.detach().clone()

            yield name, changed_copy(batch, of)


def _open_numbers(tensor: Tensor, size: int) -> tuple[float, ...]:
    """The numbers with which a tensor hides nothing, if it is a mask, a mask to add, or the lengths of sequences."""
    if tensor.is_complex():
        return ()
    if _is_of_ones(tensor):
        return (1, 0)
    if tensor.is_floating_point():
        return (0,) if _is_added(tensor) else ()
    is_length = tensor.dim() == 1 and bool(((tensor >= 1) & (tensor <= size)).all())
    return (size,) if is_length else ()
