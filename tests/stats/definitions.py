"""The definitions of statistics in docs/statistics.md, computed in float64 from the elements of a tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

DEFINITIONS: dict[str, Callable[[Array], Any]] = {
    "mean": lambda x: x.mean(),
    "std": lambda x: x.std(),
    "rms": lambda x: np.sqrt(np.square(x).mean()),
    "norm": lambda x: np.sqrt(np.square(x).sum()),
    "abs_mean": lambda x: np.abs(x).mean(),
    "min": lambda x: x.min(),
    "max": lambda x: x.max(),
    "abs_max": lambda x: np.abs(x).max(),
    "zero_fraction": lambda x: (x == 0).mean(),
    "underflow_fraction": lambda x: ((np.abs(x) < np.finfo(x.dtype).tiny) & (x != 0)).mean(),
    "nonfinite": lambda x: (~np.isfinite(x)).sum(),
}
"""Those of one tensor, by their names."""


def ratio(update: Array, param: Array) -> float:
    above, below = np.linalg.norm(update), np.linalg.norm(param)
    return 0.0 if above == below == 0 else float(above / below) if below else np.inf


def pair_statistics(parts: Array, before: Array) -> dict[str, float]:
    """The statistics of pairs at the first step with micro-batches.

    Args:
        parts: the gradient of each micro-batch as it is added to the gradient of the step, [micro-batches, elements].
        before: the gradient of the previous watched step.
    """
    now, n = parts.sum(0), len(parts)
    sizes = np.square(parts).sum(1)
    products = parts @ parts.T
    big, small = np.square(now).sum() / n**2, sizes.mean()
    signal, noise = (n * big - small) / (n - 1), (small - big) * n / (n - 1)
    return {
        "cosine": float(now @ before / (np.linalg.norm(now) * np.linalg.norm(before))),
        "micro_cosine": float((products.sum() - np.trace(products)) / (n * (n - 1)) / sizes.mean()),
        "noise_scale": float(noise / signal) if signal > 0 else np.nan,
    }
