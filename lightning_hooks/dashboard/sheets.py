"""Brings histograms to the form in which the page draws them: counts of signed powers of two, at some steps.

A bin is a whole number. Bin 0 holds zeros and magnitudes below 2^-126; bin `b` holds the numbers of the sign of `b` whose
magnitude is from 2^(|b| - 127) to 2^(|b| - 126). These are the buckets of the statistic `histogram` (`stats/histogram.py`).
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_LOWEST: Final = -126  # the exponent of the least magnitude of bins 1 and -1
_LAST: Final = 254  # the greatest bin
_SCALE: Final = 1000  # a count is packed as round(_SCALE * log2(1 + count))


def bins_of(edges: Floats) -> NDArray[np.int64]:
    """The bin of each bucket, by the middle of the bucket.

    Args:
        edges: right edges of the buckets, ascending. The first bucket is taken for as wide as its bin.

    Example:
        >>> bins_of(np.array([-0.5, -(2.0**-126), 2.0**-126, 0.5, 1.0])).tolist()
        [-126, -125, 0, 125, 126]
    """
    if not len(edges):
        return np.empty(0, dtype=np.int64)
    with np.errstate(over="ignore", invalid="ignore"):
        before = edges[0] * (2.0 if edges[0] < 0 else 0.5)
        middle = np.nan_to_num((np.append(before, edges[:-1]) + edges) / 2)
    _, exponent = np.frexp(middle)
    bins = np.clip(exponent - _LOWEST, 1, _LAST) * np.sign(middle).astype(np.int64)
    return np.where(np.abs(middle) < 2.0**_LOWEST, 0, bins)


def packed_histograms(tag: str, points: Sequence[tuple[int, Floats, Floats]]) -> dict[str, Any]:
    """The histograms of a row as the page reads them.

    Args:
        tag: of the histograms.
        points: (step, right edges of the buckets, counts).

    Returns:
        `tag`, `steps`, `totals` (the elements of each step), the first bin `low`, the number of `bins`, and `counts`: for each
        step and bin 1000 · log2(1 + count), rounded, as the base64 of little-endian uint16. Counts up to 1,000 are exact after
        rounding.
    """
    binned = [(bins_of(edges), counts) for _, edges, counts in points]
    occupied = [bins[counts > 0] for bins, counts in binned]
    all_bins = np.concatenate([np.empty(0, dtype=np.int64), *occupied])
    low, high = (int(all_bins.min()), int(all_bins.max())) if len(all_bins) else (0, 0)
    table = np.zeros((len(points), high - low + 1))
    for line, (bins, counts) in zip(table, binned, strict=True):
        kept = counts > 0
        np.add.at(line, bins[kept] - low, counts[kept])
    packed = np.clip(np.round(_SCALE * np.log2(1 + table)), 0, 65535).astype("<u2")
    return {
        "tag": tag,
        "steps": [step for step, *_ in points],
        "totals": table.sum(1).tolist(),
        "low": low,
        "bins": high - low + 1,
        "counts": base64.b64encode(packed.tobytes()).decode(),
    }
