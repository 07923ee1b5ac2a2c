"""Histograms over signed log2 magnitudes with fixed edges, and quantiles from them.

There is one bucket for each power of two and sign. Because edges are fixed, the counts of any two tensors add up exactly. 254
buckets hold negative numbers (most negative first), one holds every magnitude below the smallest normal float32 (zeros
included), and 254 hold positive numbers. Magnitudes above the range of float32 are counted in the outermost buckets. NaN and
infinities are ignored.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightning_hooks.stats.stored_counts import BUCKETS as BUCKETS
from lightning_hooks.stats.stored_counts import SIDE

_LOWEST: Final = -125  # frexp exponent of the smallest normal float32, 2**-126
_HIGHEST: Final = 128  # frexp exponent of the largest float32
_CHUNK: Final = 1 << 20  # elements: counting takes about 40 bytes for each of them


def bucket_edges() -> NDArray[np.float64]:
    """The edges of the buckets, ascending, float64 [BUCKETS + 1].

    Example:
        >>> edges = bucket_edges()
        >>> len(edges) == BUCKETS + 1 and bool((edges == -edges[::-1]).all())
        True
    """
    positive = np.exp2(np.arange(_LOWEST - 1, _HIGHEST + 1, dtype=np.float64))
    return np.concatenate([-positive[::-1], positive])


def histogram(tensor: Tensor) -> Tensor:
    """The number of elements in each bucket, float64 [BUCKETS], on the tensor's device.

    Args:
        tensor: real and dense, of any shape.

    Example:
        >>> counts = histogram(torch.tensor([0.0, 1.5, torch.inf]))
        >>> counts.sum().item(), counts[BUCKETS // 2].item()
        (2.0, 1.0)
    """
    counts: Tensor = sum(map(_counts, tensor.detach().reshape(-1).split(_CHUNK)))  # type: ignore[assignment]
    return counts


def _counts(flat: Tensor) -> Tensor:
    """The number of elements in each bucket, of a tensor that is small enough to be counted at once."""
    flat = flat if flat.dtype in (torch.float32, torch.float64) else flat.float()
    _, exponent = torch.frexp(flat)
    # How many buckets lie between the middle bucket and the bucket of the element, plus 1; 0 for the middle bucket.
    distance = exponent.to(torch.int64).clamp(_LOWEST - 1, _HIGHEST) - (_LOWEST - 1)
    index = SIDE + torch.where(flat == 0, 0, distance * torch.sign(flat).nan_to_num(0.0).to(torch.int64))
    weights = torch.isfinite(flat).to(torch.float64)
    return torch.zeros(BUCKETS, dtype=torch.float64, device=flat.device).index_add_(0, index, weights)


def shift(counts: Tensor, factor: Tensor | float) -> Tensor:
    """The histogram after all elements were multiplied by a factor: counts move by whole buckets.

    Args:
        counts: float64 [..., BUCKETS].
        factor: a power of two; a tensor of one element is not copied to the host, which would wait for its device.
    """
    octaves = (
        torch.as_tensor(factor, dtype=torch.float64).to(counts.device, non_blocking=True).reshape(()).log2().round().long()
    )
    steps = torch.arange(-SIDE, SIDE + 1, device=counts.device)
    moved = steps.sign() * (steps.abs() + octaves).clamp(0, SIDE)
    return torch.zeros_like(counts).index_add_(-1, moved + SIDE, counts)


def quantile(counts: NDArray[np.float64], q: float, low: NDArray[np.float64], high: NDArray[np.float64]) -> NDArray[np.float64]:
    """Approximate quantiles, interpolated linearly inside a bucket. They are accurate within a factor of two.

    Args:
        counts: the histogram of each row, float64 [rows, BUCKETS].
        q: the probability, between 0 and 1.
        low: the least element of each row, float64 [rows]; a lower bound of the result.
        high: the greatest element of each row, float64 [rows]; an upper bound of the result.

    Returns:
        float64 [rows]; NaN for a row without finite elements.
    """
    edges = bucket_edges()
    total = counts.sum(1)
    below = np.cumsum(counts, axis=1)
    target = q * total
    bucket = (below < target[:, None]).sum(1).clip(0, BUCKETS - 1)
    occupied_first = (counts > 0).argmax(1)
    bucket = np.maximum(bucket, occupied_first)
    rows = np.arange(len(counts))
    inside = counts[rows, bucket]
    before = below[rows, bucket] - inside
    share = np.where(inside > 0, (target - before) / np.where(inside > 0, inside, 1.0), 0.0)
    with np.errstate(invalid="ignore"):
        value = edges[bucket] + share * (edges[bucket + 1] - edges[bucket])
        # The middle bucket holds zeros and magnitudes below 2**-126, so its quantile is 0.
        value = np.where(bucket == SIDE, 0.0, value)
        bounded = np.where(np.isfinite(low) & np.isfinite(high), np.clip(value, low, high), value)
    return np.where(total > 0, bounded, np.nan)
