"""What rules that compare with a reference have in common."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar, Final

import numpy as np

from lightning_hooks.health.evidence import Evidence, Track
from lightning_hooks.health.reference.reference import Reference
from lightning_hooks.health.rule import HealthRule
from lightning_hooks.records.facts import StepFacts

IF_MEANT: Final = "If the change is meant, accept the finding, or make a new baseline from a run that has it."
"""The last of the next steps."""


@dataclass(frozen=True, kw_only=True)
class ReferenceRule(HealthRule):
    """A rule that compares a run with good runs. Steps behind the last one of the good runs are not compared.

    Args:
        reference: what the good runs tell.
    """

    patience: int = 1
    every_n_steps: int = 5
    reference: Reference = field(default=Reference(), repr=False, compare=False)
    family: ClassVar[str] = "facts"
    next_steps: ClassVar[tuple[str, ...]] = (
        "Compare the code and the configuration of this run with those of the good run.",
        IF_MEANT,
    )
    source: ClassVar[str] = "exact: what is true of a good run at every step"

    @property
    def good(self) -> str:
        """The good runs in words."""
        return "in the good run" if len(self.reference.records) < 2 else "in the good runs"


def new_facts(evidence: Evidence) -> Iterator[tuple[int, StepFacts]]:
    """Each new step with how it trained."""
    for step in evidence.new_steps.tolist():
        facts = evidence.facts_at(step)
        if facts is not None:
            yield step, facts


def first_run(evidence: Evidence, inputs: Track) -> str | None:
    """The name of the module that runs first, of those whose input is measured: it gets the data. None if unknown."""
    measured = np.flatnonzero(np.isfinite(inputs.values).any(axis=0)).tolist()
    known = {inputs.names[row] for row in measured}
    return next((name for name in evidence.order if name in known), None)
