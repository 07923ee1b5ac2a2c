"""The kernel in C++: one pass over a tensor in host memory, with any strides, without a copy.

It reports the tensors that it does not measure (another device, dtypes that are not floating, a subclass, no memory behind it);
`lightning_hooks.stats.kernels` measures these otherwise. A row of moments is 72 bytes: to make a tensor of it takes longer than
to measure a small one.

Importing this module raises where the compiled extension is absent or does not fit the installed torch.
"""

from __future__ import annotations

import struct
from pathlib import Path

import torch
from torch import Tensor

from lightning_hooks.backends import _native
from lightning_hooks.backends._native import (
    MOMENTS,
    FallbackWriter,
    SharedWriter,
    Writer,
    copy_many,
    instructions,
    measure_many_into,
    measure_units,
    writer,
)
from lightning_hooks.backends._native import measure as read
from lightning_hooks.backends._native import measure_histogram as read_histogram
from lightning_hooks.backends._native import measure_many as read_many
from lightning_hooks.private import tried

__all__ = [
    "MOMENTS",
    "FallbackWriter",
    "SharedWriter",
    "Writer",
    "copy_many",
    "instructions",
    "measure_many_into",
    "measure_units",
    "read",
    "read_histogram",
    "read_many",
    "writer",
]


def _find_exchange() -> object:
    """The DLPack exchange table of tensors: with it the extension reads tensors without linking torch."""
    table: object = getattr(Tensor, "__dlpack_c_exchange_api__", None)
    if table is None:
        raise ImportError(f"torch {torch.__version__} has no DLPack exchange table")
    return table


def _openmp() -> str | None:
    """The OpenMP library that the installed torch ships and computes with, if it is GNU's."""
    found = sorted((Path(torch.__file__).parent / "lib").glob("libgomp*"))
    return str(found[0]) if len(found) == 1 else None


_LOST = "NumPy measures tensors in host memory, at several times the cost"
_exchange = tried("Tensor.__dlpack_c_exchange_api__", _find_exchange, _LOST)
_native.setup_kernel(Tensor, torch.nn.Parameter, Tensor.is_neg, _exchange, torch.get_num_threads, _openmp())
if (read(torch.tensor([1.0, 2.0, 6.0], device="cpu")) or b"")[:16] != struct.pack("2d", 3.0, 3.0):  # count and mean
    raise ImportError(f"it measures wrong numbers with torch {torch.__version__}")
