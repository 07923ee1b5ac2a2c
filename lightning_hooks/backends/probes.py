"""What is asked of torch before a private part of it is used: whether it is there."""

from __future__ import annotations

import torch


def exchange_table() -> object | None:
    """The DLPack exchange table of tensors, by which memory is read without torch; None where this torch has none."""
    return getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
