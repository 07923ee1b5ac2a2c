"""Tensors for tests of what is measured of them."""

import torch


def doubles(rows):
    """Arrays as tensors of float64."""
    return [torch.as_tensor(row, dtype=torch.float64) for row in rows]
