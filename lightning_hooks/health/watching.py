"""What a monitor has to watch so that health rules can run, as fields of watch rules."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from lightning_hooks.health.rule import HealthRule
from lightning_hooks.rules import MODULE_TENSORS, PARAM_TENSORS
from lightning_hooks.rules.statistics import UNIT_STATS
from lightning_hooks.stats.statistics import MAGNITUDE_STATS, STATISTICS

BASE: Final = ("output", "output_grad", "param", "grad", "update")
"""The tensors that are watched as often as the monitor watches; others every `RARELY` steps."""
RARELY: Final = 10  # steps
START: Final = 25
"""The steps at the start of a run that are all watched: rules compare later steps with them."""


def fields_of_watch(
    rules: Iterable[HealthRule], *, beside: bool = False, from_start: bool = False, has_units: bool = True
) -> list[dict[str, Any]]:
    """The fields of the watch rules that the needs of health rules come to.

    Args:
        rules: the health rules.
        beside: only what a monitor with the default rules does not watch.
        from_start: also watch each of the first steps, for a monitor that later watches fewer.
        has_units: whether units can be measured. If not, the rules that need them say that they could not look.

    Example:
        >>> from lightning_hooks.health.rule import HealthRule
        >>> class Dead(HealthRule):
        ...     needs = (("output", "dead_units"), ("update", "ratio"))
        >>> for fields in fields_of_watch([Dead()]):
        ...     print(fields)
        {'modules': '*', 'select': 'layers', 'strict': False, 'tensors': ['output'], 'stats': ['dead_units'], 'units': 'auto'}
        {'params': '*', 'strict': False, 'tensors': ['update'], 'stats': ['norm', 'ratio']}
    """
    rules = [*rules]
    # The last step at which each statistic of each tensor is needed; None if all steps need it.
    stats: dict[str, dict[str, int | None]] = {}
    for rule in rules:
        for tensor, stat in rule.needs if rule.enabled else ():
            if tensor in (*MODULE_TENSORS, *PARAM_TENSORS):
                until = stats.setdefault(tensor, {}).setdefault(stat, rule.needs_until)
                is_longer = until is not None and (rule.needs_until is None or rule.needs_until > until)
                stats[tensor][stat] = rule.needs_until if is_longer else until
    listed: list[dict[str, Any]] = []
    for tensor, wanted in stats.items():
        of_units = [stat for stat in wanted if stat in UNIT_STATS]
        others = [stat for stat in wanted if stat not in UNIT_STATS]
        target = {"modules": "*", "select": "layers"} if tensor in MODULE_TENSORS else {"params": "*"}
        common = {**target, "strict": False, "tensors": [tensor]}
        if of_units and has_units:
            listed.append({**common, "stats": of_units, "units": "auto"})
        is_base = tensor in BASE
        extra = [stat for stat in others if not _is_plain(stat)]
        kept = [stat for stat in extra if wanted[stat] is None]
        for stat in extra:
            until = wanted[stat]
            if until is not None:
                listed.append({**common, "stats": [stat], "every_n_steps": {"every": RARELY, "last": until}})
                if from_start:
                    listed.append({**common, "stats": [stat], "every_n_steps": {"every": 1, "last": min(START - 1, until)}})
        if is_base and not beside and (others or not of_units):
            # `norm` stands for every statistic of the moments: a step view computes all of them from the moments of the row.
            stats_of_base = ["norm", *kept, *(["ratio"] if tensor == "update" else [])]
            listed.append({**common, "stats": stats_of_base})
            if from_start:
                listed.append({**common, "stats": stats_of_base, "every_n_steps": {"every": 1, "last": START - 1}})
        elif not is_base or kept:
            listed.append({**common, "stats": kept or ["norm"], "every_n_steps": RARELY})
    for tensor in dict.fromkeys(tensor for rule in rules for tensor in rule.needs_start if rule.enabled):
        target = {"modules": "*", "select": "layers"} if tensor in MODULE_TENSORS else {"params": "*"}
        every = {"every": 1, "last": START - 1}
        listed.append({**target, "strict": False, "tensors": [tensor], "stats": ["norm"], "every_n_steps": every})
    return listed


def _is_plain(stat: str) -> bool:
    """Whether a statistic follows from the moments, or from those of two rows, so that no rule has to request it."""
    return (stat in STATISTICS and stat not in MAGNITUDE_STATS) or stat in ("ratio", "count")
