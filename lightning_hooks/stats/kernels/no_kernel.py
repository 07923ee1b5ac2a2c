"""Replaces `backends.native` if the extension is not compiled. It has the same functions, which decline every tensor.

So the general path, which also measures the tensors that the compiled kernel declines, measures all tensors.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from lightning_hooks.stats.kernels.trail import Trail
from lightning_hooks.stats.kernels.writers import FallbackWriter

__all__ = [
    "FallbackWriter",
    "Trail",
    "compare_many",
    "copy_many",
    "measure_many_into",
    "measure_units",
    "read",
    "read_histogram",
    "read_many",
    "writer",
]


def read(tensor: Tensor, /) -> None:
    """No moments."""


def read_many(tensors: Sequence[Tensor], /) -> list[None]:
    """No moments of any of the tensors."""
    return [None] * len(tensors)


def read_histogram(tensor: Tensor, /) -> None:
    """No histogram."""


def measure_units(tensor: Tensor, axis: int, /) -> None:
    """No units."""


def writer(*options: object) -> None:
    """No writer."""


def measure_many_into(state: Tensor, firsts: object, tensors: Sequence[Tensor], *options: object) -> list[int]:
    """The positions of all tensors: none was written into the state."""
    return list(range(len(tensors)))


def compare_many(state: Tensor, firsts: object, tensors: Sequence[Tensor], others: Sequence[Tensor], /) -> list[int]:
    """The positions of all pairs: none was compared."""
    return list(range(len(tensors)))


def copy_many(into: Sequence[Tensor], tensors: Sequence[Tensor], /) -> list[int]:
    """The positions of all tensors: none was copied."""
    return list(range(len(tensors)))
