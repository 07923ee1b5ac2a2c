"""The measurement in C++: one pass over a tensor in the memory of this machine, whatever its strides, without a copy.

What it does not measure (another device, numbers that are not floating, a subclass of tensor, no memory behind it) it says
so of, and `elsewhere` serves. Moments come out as 72 bytes: making a tensor of them takes longer than measuring a small
one, and the table takes them as they are.

Importing this module fails where the compiled part is absent or does not suit this torch; `choice` says why.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from lightning_hooks.backends import _native
from lightning_hooks.backends._native import (
    MOMENTS,
    Way,
    copy_many,
    draw,
    fill_floats,
    instructions,
    measure_into,
    measure_many_into,
    record,
    writer,
)
from lightning_hooks.backends._native import measure as read
from lightning_hooks.backends._native import measure_histogram as read_histogram
from lightning_hooks.backends._native import measure_many as read_many

__all__ = [
    "MOMENTS",
    "Way",
    "copy_many",
    "draw",
    "fill_floats",
    "instructions",
    "measure_into",
    "measure_many_into",
    "read",
    "read_histogram",
    "read_many",
    "record",
    "writer",
]


def _exchange() -> object:
    """The DLPack exchange table of tensors, by which memory is read without torch."""
    table: object = getattr(Tensor, "__dlpack_c_exchange_api__", None)
    if table is None:
        raise ImportError(f"torch {torch.__version__} has no DLPack exchange table")
    return table


def _openmp() -> str | None:
    """The OpenMP library that this torch brought along and computes with, if it is GNU's."""
    found = sorted((Path(torch.__file__).parent / "lib").glob("libgomp*"))
    return str(found[0]) if len(found) == 1 else None


_native.setup_kernel(Tensor, torch.nn.Parameter, Tensor.is_neg, _exchange(), torch.get_num_threads, _openmp())
