"""The tensors in nested values, in order; in a batch each with the expression that gives it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from lightning_hooks.nested.kinds import parts_of, parts_of_class
from lightning_hooks.nested.pytree import leaves_of


def tensors_in(tree: Any, _inside: tuple[Any, ...] = ()) -> Iterator[Tensor]:
    """Every tensor in the arguments or the result of a call, in order; an object is not searched inside itself.

    Attributes of other objects are not searched: a call may get a cache or a configuration, which outlives it. Registering a
    class with pytree declares that its objects are searched.

    Example:
        >>> import torch
        >>> len(list(tensors_in({"a": torch.ones(1), "b": (torch.ones(2), 3)})))
        2
    """
    if isinstance(tree, Tensor):
        yield tree
        return
    for leaf in leaves_of(tree):
        if isinstance(leaf, Tensor):
            yield leaf
        # Skip an object that is being searched: objects may hold each other, as a node and its parent do.
        elif any(leaf is outer for outer in _inside):
            continue
        elif (parts := parts_of_class(leaf)) is not None:
            for part in parts.values:
                yield from tensors_in(part, (*_inside, leaf))


def named_tensors(batch: Any, name: str = "batch") -> Iterator[tuple[str, Tensor]]:
    """Every tensor of a batch with the expression that gives it, in order; an object is not searched inside itself.

    Args:
        batch: what a data loader gave.
        name: of the batch.

    Example:
        >>> import torch
        >>> [name for name, _ in named_tensors({"x": torch.ones(2), "y": (1, torch.ones(3))})]
        ["batch['x']", "batch['y'][1]"]
    """
    if isinstance(batch, Tensor):
        yield name, batch
        return
    # A nest may be deeper than the stack. Each entry holds the values around it, the nearest first.
    todo: list[tuple[str, Any, _Outer | None]] = [(name, batch, None)]
    while todo:
        name, value, outer = todo.pop()
        if isinstance(value, Tensor):
            yield name, value
            continue
        parts = parts_of(value)
        if parts is not None and not _holds(outer, value):
            inner = value, outer
            todo += [(name + each, part, inner) for each, part in zip(*map(reversed, parts), strict=True)]


def tensors_of(batch: Any) -> list[Tensor]:
    """The tensors of a batch, in the order of `named_tensors`."""
    # Most batches are a tensor, or a tuple or list of tensors: look at these without names.
    if isinstance(batch, Tensor):
        return [batch]
    if type(batch) in (tuple, list):
        for each in batch:
            if not isinstance(each, Tensor):
                break
        else:
            return list(batch)
    return [tensor for _, tensor in named_tensors(batch)]


_Outer = tuple[Any, Any]
"""A value, and the values around it in the same form."""


def _holds(outer: _Outer | None, value: Any) -> bool:
    while outer is not None:
        if outer[0] is value:
            return True
        outer = outer[1]
    return False
