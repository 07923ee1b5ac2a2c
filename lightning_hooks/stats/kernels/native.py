"""The measurement in C++: one pass over a tensor in the memory of this machine, whatever its strides, without a copy.

What it does not measure (another device, numbers that are not floating, a subclass of tensor, no memory behind it) it says
so of, and `elsewhere` serves. Moments come out as 72 bytes: making a tensor of them takes longer than measuring a small
one, and the table takes them as they are.

Importing this module fails where the compiled part is absent or does not suit this torch; `kernels` says why.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from lightning_hooks.stats.kernels import _native, elsewhere
from lightning_hooks.stats.kernels._native import (
    crc32c,
    derive,
    draw,
    fill_floats,
    measure_into,
    measure_many_into,
    put_histogram,
    put_many,
    put_moments,
    writer,
)
from lightning_hooks.stats.kernels._native import measure as read
from lightning_hooks.stats.kernels._native import measure_histogram as read_histogram
from lightning_hooks.stats.kernels._native import measure_many as read_many
from lightning_hooks.stats.moments import MOMENTS

__all__ = [
    "crc32c",
    "derive",
    "describe",
    "draw",
    "fill_floats",
    "measure",
    "measure_into",
    "measure_many",
    "measure_many_into",
    "put_histogram",
    "put_many",
    "put_moments",
    "read",
    "read_histogram",
    "read_many",
    "writer",
]


def measure(tensor: Tensor) -> Tensor:
    """The raw moments of one tensor.

    Args:
        tensor: real and dense, any shape, any device.

    Returns:
        float64 [9] on the tensor's device.

    Example:
        >>> measure(torch.tensor([1.0, 3.0]))[:3].tolist()
        [2.0, 2.0, 2.0]
    """
    # A compiler traces plain torch, whose operations it knows.
    moments = None if torch.compiler.is_compiling() else read(tensor)
    return elsewhere.measure(tensor) if moments is None else as_tensor(moments)


def measure_many(tensors: Sequence[Tensor]) -> Tensor:
    """The raw moments of several tensors on one device, read in one call.

    Returns:
        float64 [len(tensors), 9].
    """
    found = [None] if torch.compiler.is_compiling() else read_many(tensors)
    rows = [moments for moments in found if moments is not None]
    if len(rows) == len(tensors):
        return as_tensor(b"".join(rows)).view(-1, MOMENTS) if rows else torch.empty(0, MOMENTS, dtype=torch.float64)
    if not rows:
        return elsewhere.measure_many(tensors)
    return torch.stack([measure(tensor) for tensor in tensors])


def as_tensor(numbers: bytes) -> Tensor:
    """The numbers that the compiled part gave, float64 [len(numbers) // 8]."""
    return torch.frombuffer(bytearray(numbers), dtype=torch.float64)


def describe() -> str:
    """A few words on what runs here, such as `native (avx512)`."""
    return f"native ({_native.instructions()})"


def _exchange() -> object:
    try:
        return torch.Tensor.__dlpack_c_exchange_api__
    except AttributeError:
        raise ImportError(f"torch {torch.__version__} has no DLPack exchange table") from None


def _openmp() -> str | None:
    """The OpenMP library that this torch brought along and computes with, if it is GNU's."""
    found = sorted((Path(torch.__file__).parent / "lib").glob("libgomp*"))
    return str(found[0]) if len(found) == 1 else None


_native.setup(Tensor, torch.nn.Parameter, Tensor.is_neg, _exchange(), torch.get_num_threads, _openmp())
