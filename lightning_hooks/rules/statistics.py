"""The names that rules give to statistics. Their formulas are in `stats`, which holds its own names against these."""

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
)
"""All statistics of the package; of quantiles, of which there are many, three."""
ONLY_OF: Final = {"ratio": "update", "cosine": "grad", "micro_cosine": "grad", "noise_scale": "grad"}
"""The statistics that only one tensor has."""
UNIT_STATS: Final = NAMES[NAMES.index("dead_units") :]
"""The statistics of units, which tensors of modules have."""
_QUANTILE: Final = re.compile(r"p(\d{1,2}(?:\.\d+)?)")


def quantile_of(stat: str) -> float | None:
    """The quantile that a name asks for, or None where it names none.

    Example:
        >>> quantile_of("p99"), quantile_of("p2.5"), quantile_of("mean")
        (0.99, 0.025, None)
    """
    found = _QUANTILE.fullmatch(stat)
    return float(found.group(1)) / 100 if found else None


def is_known(stat: Any) -> bool:
    """Whether a rule names a statistic of the package; otherwise it gives one of the user's."""
    return isinstance(stat, str) and (stat in NAMES or quantile_of(stat) is not None)


def check_statistic(stat: Any, tensors: Sequence[str], where: str) -> None:
    """Refuse a statistic that does not exist, or that none of the tensors has.

    An import path, which has a dot, is imported when the rule is resolved against a model.
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
    elif not isinstance(stat, (str, Mapping)) and not callable(stat) and not hasattr(stat, "columns"):  # an accumulator has
        raise RuleError(f"{where}: {shown(stat)} is not a statistic; give a name, an import path, a callable or an accumulator")
