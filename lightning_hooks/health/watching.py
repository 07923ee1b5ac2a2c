"""What a monitor has to watch so that health rules can run, as fields of watch rules."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from lightning_hooks.health.rule import HealthRule
from lightning_hooks.rules import MODULE_TENSORS, PARAM_TENSORS
from lightning_hooks.rules.statistics import UNIT_STATS

BASE: Final = ("output", "output_grad", "param", "grad", "update")
"""The tensors that are watched as often as the monitor watches; others every `RARELY` steps."""
RARELY: Final = 10
START: Final = 25
"""The steps at the start of a run that are all watched: rules compare later steps with them."""
_PLAIN: Final = ("ratio", "mean", "std", "rms", "norm", "min", "max", "abs_max", "zero_fraction", "nonfinite", "count")


def fields_of_watch(rules: Iterable[HealthRule], *, beside: bool = False) -> list[dict[str, Any]]:
    """The fields of the watch rules that the needs of health rules come to.

    Args:
        rules: the health rules.
        beside: only what a monitor with the default rules does not watch.

    Example:
        >>> from lightning_hooks.health.rule import HealthRule
        >>> class Dead(HealthRule):
        ...     needs = (("output", "dead_units"), ("update", "ratio"))
        >>> for fields in fields_of_watch([Dead()]):  # doctest: +ELLIPSIS
        ...     print(fields)
        {'modules': '*', 'leaves': True, 'strict': False, 'tensors': ['output'], 'stats': ['dead_units'], 'units': 'auto'}
        {'params': '*', 'strict': False, 'tensors': ['update'], 'stats': ['norm', 'ratio']}
        {'params': '*', 'strict': False, 'tensors': ['update'], 'stats': ['norm', 'ratio'], 'every_n_steps': ...}
    """
    stats: dict[str, dict[str, None]] = {}
    for rule in rules:
        for tensor, stat in rule.needs if rule.is_on else ():
            if tensor in (*MODULE_TENSORS, *PARAM_TENSORS):
                stats.setdefault(tensor, {})[stat] = None
    listed: list[dict[str, Any]] = []
    for tensor, wanted in stats.items():
        of_units = [stat for stat in wanted if stat in UNIT_STATS]
        others = [stat for stat in wanted if stat not in UNIT_STATS]
        target = {"modules": "*", "leaves": True} if tensor in MODULE_TENSORS else {"params": "*"}
        common = {**target, "strict": False, "tensors": [tensor]}
        if of_units:
            listed.append({**common, "stats": of_units, "units": "auto"})
        is_base = tensor in BASE
        kept = [stat for stat in others if stat not in _PLAIN]
        if is_base and not beside and (others or not of_units):
            # One statistic is enough: every statistic of the moments follows from the same state.
            stats_of_base = ["norm", *kept, *(["ratio"] if tensor == "update" else [])]
            listed.append({**common, "stats": stats_of_base})
            listed.append({**common, "stats": stats_of_base, "every_n_steps": {"every": 1, "last": START - 1}})
        elif not is_base or kept:
            listed.append({**common, "stats": kept or ["norm"], "every_n_steps": RARELY})
    return listed
