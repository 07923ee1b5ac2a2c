"""The compiled kernel in C++. It measures a tensor in host memory, with any strides, in one pass and without a copy.

The functions return None for, or list the indices of, tensors that the kernel does not measure: on another device, of a dtype
that is not floating, of a subclass, or without memory. `lightning_hooks.stats.kernels` then takes another kernel. Moments are
returned as 72 packed bytes, because making a tensor of them takes longer than measuring a small tensor.

Importing this module raises ImportError if the extension is not compiled or does not work with the installed torch.
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
    Trail,
    Writer,
    compare_many,
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
    "Trail",
    "Writer",
    "compare_many",
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
    """The DLPack exchange table of torch, through which the extension reads tensors without linking torch."""
    table: object = getattr(Tensor, "__dlpack_c_exchange_api__", None)
    if table is None:
        raise ImportError(f"torch {torch.__version__} has no DLPack exchange table")
    return table


def _openmp() -> str | None:
    """The path of the OpenMP library with which the installed torch computes; None if torch does not ship GNU's."""
    libraries = sorted((Path(torch.__file__).parent / "lib").glob("libgomp*"))
    return str(libraries[0]) if len(libraries) == 1 else None


_LOST = "plain torch measures tensors in host memory, at several times the cost"
_exchange = tried("Tensor.__dlpack_c_exchange_api__", _find_exchange, _LOST)
_native.setup_kernel(Tensor, torch.nn.Parameter, Tensor.is_neg, _exchange, torch.get_num_threads, _openmp())
# Test the kernel once: compare the first two moments, the count and the mean, with the right numbers.
if (read(torch.tensor([1.0, 2.0, 6.0], device="cpu")) or b"")[:16] != struct.pack("2d", 3.0, 3.0):
    raise ImportError(f"it measures wrong numbers with torch {torch.__version__}")
