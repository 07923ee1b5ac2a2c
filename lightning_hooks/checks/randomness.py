"""Gives the global generators of Python, NumPy and torch other states."""

from __future__ import annotations

import random

import numpy as np
import torch


def shuffle_generators(seed: int) -> None:
    """Set the global generators to another state, so that what is drawn next differs from what was drawn before."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
