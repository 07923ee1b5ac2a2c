"""The rule that compares a run with good runs, and what an entry of its tables says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

import numpy as np

from lightning_hooks.health.evidence import Evidence
from lightning_hooks.health.reference.record import Record
from lightning_hooks.health.reference.reference import Reference
from lightning_hooks.health.reference.traits import Traits
from lightning_hooks.health.roles import Mask
from lightning_hooks.health.rule import HealthRule, Severity, Symptom
from lightning_hooks.health.rules.base import Needs
from lightning_hooks.health.track import Track

IF_MEANT: Final = "If the change is meant, accept the finding, or make a new baseline from a run that has it."
"""The last of the next steps."""
_NOTHING: Final = Traits()


@dataclass(frozen=True)
class GoodRuns:
    """What a run is compared with, and how exactly.

    Args:
        reference: what the good runs tell.
        tolerances: those of the rule that compares, by name.
    """

    reference: Reference
    tolerances: Mapping[str, float]

    @property
    def words(self) -> str:
        """The good runs in words."""
        return "in the good run" if len(self.reference.records) < 2 else "in the good runs"

    @property
    def records(self) -> list[Record]:
        """The records of those good runs that say how their steps trained."""
        return [record for record in self.reference.records if record.frozen.changes]

    def traits(self, tensor: str) -> Traits:
        """The traits that the rows of a tensor have in the good runs."""
        return self.reference.traits.get(tensor, _NOTHING)

    def never_saw(self, kind: str) -> bool:
        """Whether lookouts of each good run looked for a kind of sightings and saw none."""
        return bool(self.records) and all(kind in record.unseen for record in self.records)

    def compared_steps(self, track: Track) -> Mask:
        """The new steps of a track that are compared, bool [window]."""
        new = np.zeros(len(track.steps), dtype=np.bool_)
        new[track.new] = track.steps[track.new] <= self.reference.last
        return new


@dataclass(frozen=True)
class Compared:
    """An entry of a table: what is compared under the name of one rule, how exactly, and in which words.

    Args:
        name: of the rule.
        differences: functions of the good runs and the evidence, each of which yields how a run differs at its new steps, in
            the order in which differences are told.
        tolerances: by name, with their defaults. A user changes them as the fields of any rule.
        obstacle: a function that says why the rule cannot run, or None if it can; without it the rule needs each pair of
            `needs`.
        patience: as of `HealthRule`; so are the following ones.
    """

    name: str
    differences: tuple[Callable[[GoodRuns, Evidence], Iterable[Symptom]], ...]
    tolerances: Mapping[str, float] = field(default_factory=dict, hash=False)
    obstacle: Callable[[GoodRuns, Evidence], str | None] | None = None
    patience: int = 1
    severity: Severity = Severity.WARNING
    family: str = "facts"
    needs: Needs = ()
    needs_start: tuple[str, ...] = ()
    looks_for: tuple[str, ...] = ()
    next_steps: tuple[str, ...] = (
        "Compare the code and the configuration of this run with those of the good run.",
        IF_MEANT,
    )
    source: str = "exact: what is true of a good run at every step"


_NO_OPTIONS: Final = ("compared", "tolerances", "reference")
"""The fields of a rule that a user does not change by name."""
_OF_THE_ENTRY: Final = ("name", "family", "needs", "needs_start", "looks_for", "next_steps", "source")
"""The attributes of a rule that its entry has."""


@dataclass(frozen=True, kw_only=True, repr=False)
class ReferenceRule(HealthRule):
    """A rule that compares a run with good runs, by one entry of a table. Steps behind the last good one are not compared.

    Args:
        compared: the entry.
        tolerances: how exactly it is compared.
        reference: what the good runs tell.
    """

    patience: int = 1
    every_n_steps: int = 5
    compared: Compared
    tolerances: Mapping[str, float] = field(hash=False)
    reference: Reference = field(default=Reference(), compare=False)

    def __post_init__(self) -> None:
        # All entries have this class, so each rule has the name and the words of its entry.
        for name in _OF_THE_ENTRY:
            object.__setattr__(self, name, getattr(self.compared, name))
        super().__post_init__()
        for name, default in self.compared.tolerances.items():
            self._check_value(name, type(default), self.tolerances[name])

    def __repr__(self) -> str:
        values = {name: getattr(self, name, None) for name in self.option_names} | {**self.tolerances}
        return f"{self.name}({', '.join(f'{name}={value!r}' for name, value in values.items())})"

    @classmethod
    def of(cls, compared: Compared, reference: Reference) -> Self:
        """The rule of an entry."""
        return cls(
            compared=compared,
            severity=compared.severity,
            patience=compared.patience,
            tolerances=compared.tolerances,
            reference=reference,
        )

    @property
    def option_names(self) -> list[str]:
        return [*(name for name in super().option_names if name not in _NO_OPTIONS), *self.tolerances]

    def with_options(self, options: Mapping[str, Any]) -> Self:
        tolerances = {name: options.get(name, value) for name, value in self.tolerances.items()}
        common = {name: value for name, value in options.items() if name not in tolerances}
        return super().with_options({**common, "tolerances": tolerances})

    @property
    def looks_between(self) -> bool:
        return False

    def can_run(self, evidence: Evidence) -> str | None:
        obstacle = self.compared.obstacle
        return super().can_run(evidence) if obstacle is None else obstacle(self._good_runs(), evidence)

    def check(self, evidence: Evidence) -> Iterable[Symptom]:
        good = self._good_runs()
        for differences in self.compared.differences:
            yield from differences(good, evidence)

    def _good_runs(self) -> GoodRuns:
        return GoodRuns(self.reference, self.tolerances)


def first_run(evidence: Evidence, inputs: Track) -> str | None:
    """The name of the module that runs first, of those whose input is measured: it gets the data. None if unknown."""
    measured = np.flatnonzero(np.isfinite(inputs.values).any(axis=0)).tolist()
    known = {inputs.names[row] for row in measured}
    return next((name for name in evidence.order if name in known), None)
