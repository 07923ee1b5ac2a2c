"""Tensors for tests of measurements."""

import torch


def doubles(rows):
    """Arrays as float64 tensors."""
    return [torch.as_tensor(row, dtype=torch.float64) for row in rows]
