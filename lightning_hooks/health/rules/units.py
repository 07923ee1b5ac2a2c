"""Rule on experts: one of many carries the load."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from lightning_hooks.health.evidence import Evidence
from lightning_hooks.health.roles import EXPERT, NO_STRUCTURE, Array, Roles, percent, roles_of
from lightning_hooks.health.rule import HealthRule, Kind, Symptom, symptoms_where

_ROUTER: Final = re.compile(r"router|gate|gating|switch", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class UnitCollapse(HealthRule):
    """One of many experts gets nearly all elements.

    Experts are the members of a list whose name says so, `experts.0`, `experts.1` …, with at least `least_experts` members. The
    load of an expert is the number of elements of its first module's output. Routers are softmax modules whose name says so.

    Args:
        share: the share of the load that one expert may have.
        window: the number of steps over which loads are added.
        least_experts: the smallest number of experts to judge.
        effective: the number of effective units below which one unit of a router carries the load.
    """

    share: float = 0.9
    window: int = 20
    least_experts: int = 4
    effective: float = 1.2
    patience: int = 10
    warmup: int = 20
    family: ClassVar[str] = "activations"
    kind: ClassVar[Kind] = "pattern"
    needs: ClassVar[tuple[tuple[str, str], ...]] = (("output", "count"), ("output", "effective_units"))
    next_steps: ClassVar[tuple[str, ...]] = (
        "Add a loss that balances the load of the experts, or noise to the router.",
        "Start the router with small weights and without a bias.",
    )
    source: ClassVar[str] = "Shazeer et al. 2017 (arXiv 1701.06538) describe the collapse; the share is of this package"
    consequence: ClassVar[str] = (
        "The other experts get no samples and do not learn, so that the model has the capacity of one expert."
    )
    false_alarm: ClassVar[str] = (
        "A phase in which one expert is chosen on purpose looks the same. The finding is a note until the loss shows harm."
    )

    def can_run(self, evidence: Evidence) -> str | None:
        roles, track = roles_of(evidence), evidence.track("output", "count")
        if roles is None:
            return NO_STRUCTURE
        if track is None:
            return "no row has `output`"
        if not _experts(evidence, roles, self.least_experts) and not _routers(roles, track.names).any():
            return f"the model has no list of at least {self.least_experts} experts and no router"
        return None

    def check(self, evidence: Evidence) -> Iterable[Symptom]:
        count, roles = evidence.track("output", "count"), roles_of(evidence)
        if count is None or roles is None or not len(evidence.new_steps):
            return
        for columns in _experts(evidence, roles, self.least_experts):
            loads = _sums(np.nan_to_num(count.values[:, columns]), self.window)
            shares = np.full(count.values.shape, np.nan)
            with np.errstate(invalid="ignore", divide="ignore"):
                shares[:, columns] = loads / loads.sum(axis=1, keepdims=True)
            shares[: self.window - 1] = np.nan
            shares[np.isnan(count.values) | (count.values == 0)] = np.nan
            yield from symptoms_where(
                count._replace(values=shares), shares > self.share, self.share, self._collapsed, before=percent
            )
        units = evidence.track("output", "effective_units")
        if units is not None:
            holds = (units.values < self.effective) & _routers(roles, units.names)
            yield from symptoms_where(units, holds, self.effective, _one_unit, before="{:.2f}".format)

    def _collapsed(self, share: float) -> str:
        return f"the expert got {percent(share)} of the elements of all experts in {self.window} steps"


def _one_unit(effective: float) -> str:
    return f"the load of the router is that of {effective:.2f} equal units"


def _experts(evidence: Evidence, roles: Roles, least: int) -> list[np.ndarray]:
    """The columns of the first measured module of each expert, for each list of experts."""
    track, many = evidence.track("output", "count"), roles.remember("lists of experts", (), lambda: _lists(roles))
    if track is None or all(len(each) < least for each in many.values()):
        return []
    firsts: dict[str, dict[str, int]] = {}
    positions = {name: column for column, name in enumerate(track.names)}
    for name in (*(name for name in evidence.order if name in positions), *track.names):
        match = EXPERT.match(name)
        if match:
            firsts.setdefault(match["list"], {}).setdefault(match["index"], positions[name])
    return [np.array(list(each.values())) for name, each in firsts.items() if len(many.get(name, ())) >= least]


def _lists(roles: Roles) -> dict[str, set[str]]:
    """The members of each list of experts."""
    many: dict[str, set[str]] = {}
    for match in filter(None, map(EXPERT.match, roles.modules)):
        many.setdefault(match["list"], set()).add(match["index"])
    return many


def _routers(roles: Roles, names: tuple[str, ...]) -> np.ndarray:
    return roles.have_type(names, ("Softmax",)) & roles.are_named(names, _ROUTER)


def _sums(values: Array, window: int) -> Array:
    """The sum over the last `window` steps at each step, float64 [window, columns]."""
    total = np.cumsum(values, axis=0)
    total[window:] -= total[:-window].copy()
    return total


RULES: Final[tuple[HealthRule, ...]] = (UnitCollapse(),)
"""The rules on experts and routers, with their default thresholds."""
