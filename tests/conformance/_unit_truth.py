"""The statistics of units in float64, computed from whole tensors without any code of the package."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from torch import Tensor

UNIT_STATISTICS = (
    "dead_units",
    "outlier_units",
    "unit_max_over_median",
    "load_cv",
    "effective_units",
    "top_unit",
    "busiest_unit",
    "unit_variation",
)


@np.errstate(invalid="ignore", divide="ignore")
def unit_truth(tensors: Sequence[Tensor], axis: int = -1) -> dict[str, float]:
    """Every statistic of the units of some tensors together; `docs/statistics.md` has the definitions.

    Args:
        tensors: all tensors that a row measured in a step.
        axis: the dimension of the units.
    """
    x = np.concatenate([t.detach().double().movedim(axis, -1).reshape(-1, t.shape[axis]).numpy() for t in tensors])
    largest, squares = np.abs(x).max(0), np.square(x).sum(0)
    load = x.sum(0) if (x >= 0).all() else squares
    has_nan = bool(np.isnan(x).any())
    usual = _median(np.sqrt(squares / len(x))[largest != 0])
    shares = load / load.sum()
    return {
        "dead_units": float((largest < 1e-5).mean()),
        "outlier_units": math.nan if has_nan else float(((largest > 100) & (largest > 674 * usual)).sum()),
        "unit_max_over_median": largest.max() / _median(largest[largest != 0]),
        "load_cv": load.std() / load.mean(),
        "effective_units": math.exp(-sum(share * math.log(share) for share in shares if share != 0)),
        "top_unit": float(_first_largest(largest)),
        "busiest_unit": float(_first_largest(load)),
        "unit_variation": math.sqrt(x.var(0).mean() / np.square(x).mean()) if np.square(x).mean() > 0 else math.nan,
    }


def _median(values: np.ndarray) -> float:
    return math.nan if len(values) == 0 or np.isnan(values).any() else float(np.median(values))


def _first_largest(values: np.ndarray) -> int:
    return int(np.isnan(values).argmax()) if np.isnan(values).any() else int(values.argmax())
