"""The base of rules on what lookouts have seen of the code around the model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from lightning_hooks.health.evidence import Evidence
from lightning_hooks.health.rule import HealthRule, Symptom
from lightning_hooks.health.rules.base import Obstacles, no_facts
from lightning_hooks.records.facts import Sighting, StepFacts


def no_lookout(evidence: Evidence, looks_for: tuple[str, ...]) -> str | None:
    """Why nothing can have been seen: the run was recorded without the lookout, or its driver cannot look there."""
    looked_for = () if evidence.facts is None else evidence.facts.looked_for
    return None if any(kind in looked_for for kind in looks_for) else "nothing has looked at this part of the loop"


@dataclass(frozen=True, kw_only=True)
class SightingRule(HealthRule):
    """Tells the sightings of its kinds, each as long as it holds."""

    patience: int = 1
    every_n_steps: int = 5
    family: ClassVar[str] = "facts"
    obstacles: ClassVar[Obstacles] = (no_facts,)

    def can_run(self, evidence: Evidence) -> str | None:
        return super().can_run(evidence) or no_lookout(evidence, self.looks_for)

    def check(self, evidence: Evidence) -> Iterable[Symptom]:
        for step in evidence.new_steps.tolist():
            facts = evidence.facts_at(step)
            for sighting in () if facts is None else facts.sightings:
                if sighting.kind in self.looks_for and self.counts(sighting, facts, evidence):
                    yield from symptoms_of(sighting, step)

    def counts(self, sighting: Sighting, facts: StepFacts | None, evidence: Evidence) -> bool:
        """Whether a sighting is to be told at a step; a rule may ask for a second witness."""
        return True


def symptoms_of(sighting: Sighting, step: int) -> Iterable[Symptom]:
    """A sighting as symptoms, one for each of its rows."""
    text = f"{sighting.text} ({sighting.line})" if sighting.line else sighting.text
    for row in sighting.rows or ("",):
        yield Symptom(
            row,
            tensor="",
            step=step,
            measured=sighting.measured,
            threshold=sighting.threshold,
            text=text,
            is_fact=sighting.is_fact,
        )
