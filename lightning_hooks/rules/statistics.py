"""The names of statistics in rules. Their formulas are in `stats`, which asserts that it has the same names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from lightning_hooks.errors import RuleError, did_you_mean, shown
from lightning_hooks.rules.tensors import MODULE_TENSORS, parse_tensor

NAMES: Final = (
    "mean",
    "std",
    "rms",
    "norm",
    "abs_mean",
    "min",
    "max",
    "abs_max",
    "zero_fraction",
    "underflow_fraction",
    "nonfinite",
    "ratio",
    "histogram",
    "p1",
    "p50",
    "p99",
    "cosine",
    "micro_cosine",
    "noise_scale",
    "dead_units",
    "outlier_units",
    "unit_max_over_median",
    "load_cv",
    "effective_units",
    "top_unit",
    "busiest_unit",
    "unit_variation",
)
"""The names of all statistics of the package, with three of the many quantiles."""
ONLY_OF: Final = {"ratio": "update", "cosine": "grad", "micro_cosine": "grad", "noise_scale": "grad"}
"""Maps a statistic of a single tensor to this tensor."""
UNIT_STATS: Final = NAMES[NAMES.index("dead_units") :]
"""The statistics of units, which only tensors of modules have."""
_QUANTILE: Final = re.compile(r"p(\d{1,2}(?:\.\d+)?)")


def quantile_of(stat: str) -> float | None:
    """The quantile that the name of a statistic stands for, or None for any other name.

    Example:
        >>> quantile_of("p99"), quantile_of("p2.5"), quantile_of("mean")
        (0.99, 0.025, None)
    """
    match = _QUANTILE.fullmatch(stat)
    return float(match.group(1)) / 100 if match else None


def is_known(stat: Any) -> bool:
    """Whether an entry of `stats` is the name of a statistic of the package, not a statistic of the user's."""
    return isinstance(stat, str) and (stat in NAMES or quantile_of(stat) is not None)


def check_statistic(stat: Any, tensors: Sequence[str], where: str) -> None:
    """Raise if a statistic does not exist, or if the watched tensors do not have it.

    An import path (a name with a dot) passes: it is imported when the rule is resolved against a model.
    """
    if is_known(stat):
        only = ONLY_OF.get(stat)
        if only is not None and only not in tensors:
            raise RuleError(f"{where}: {stat!r} is a statistic of {only!r}; the rule watches {', '.join(tensors)}")
        if stat in UNIT_STATS and not all(parse_tensor(tensor)[0] in MODULE_TENSORS for tensor in tensors):
            raise RuleError(f"{where}: {stat!r} is a statistic of modules' tensors; the rule watches {', '.join(tensors)}")
    elif isinstance(stat, str) and "." not in stat:
        known = ", ".join(NAMES)
        raise RuleError(f"{where}: unknown statistic {shown(stat)}{did_you_mean(stat[:100], NAMES)}; known are {known}")
    # Recognise an accumulator by its `columns`: importing the class for `isinstance` would load torch.
    elif not isinstance(stat, (str, Mapping)) and not callable(stat) and not hasattr(stat, "columns"):
        raise RuleError(f"{where}: {shown(stat)} is not a statistic; give a name, an import path, a callable or an accumulator")
