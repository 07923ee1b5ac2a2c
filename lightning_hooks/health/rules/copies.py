"""A rule on operations that write into a copy of what they are to change."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar, Final

import numpy as np

from lightning_hooks.health.evidence import Evidence
from lightning_hooks.health.rule import HealthRule, Symptom
from lightning_hooks.health.rules.base import Needs, Obstacles, no_facts, no_optimizer, no_structure
from lightning_hooks.health.rules.flow import UnchangedParameter
from lightning_hooks.health.usage import membership_of

_KINDS: Final = ("not-contiguous",)
_TEXT: Final = "its optimizer steps, but it stays as it is, bit by bit. It is not contiguous in memory"


@dataclass(frozen=True, kw_only=True)
class CopyUpdated(HealthRule):
    """The step of an optimizer changes none of its parameters that are not contiguous in memory, and changes the others.

    An update of `param.data.contiguous()`, of a `reshape` or a `flatten` changes the parameter itself if it is contiguous, and
    a copy if it is not: if it is transposed, or a weight of a convolution in the format `channels_last`.
    """

    every_n_steps: int = 5
    patience: int = 3
    family: ClassVar[str] = "facts"
    looks_for: ClassVar[tuple[str, ...]] = _KINDS
    obstacles: ClassVar[Obstacles] = (no_facts, no_optimizer, no_structure)
    needs: ClassVar[Needs] = UnchangedParameter.needs
    next_steps: ClassVar[tuple[str, ...]] = (
        "In the step of the optimizer write into the parameter itself, `param.add_(…)`: `contiguous()`, `reshape`, `flatten` "
        "return a copy of a parameter that is not contiguous.",
        "Or make the parameter contiguous when it is created: `nn.Parameter(weight.t().contiguous())`.",
    )
    source: ClassVar[str] = "a definition, with the three steps of UnchangedParameter"
    consequence: ClassVar[str] = "The step changes a temporary copy, so that these parameters keep their first values."
    false_alarm: ClassVar[str] = (
        "The rule compares bits over three steps, and needs other parameters that move. No usual false alarm is known."
    )

    def check(self, evidence: Evidence) -> Iterable[Symptom]:
        still: dict[int, list[Symptom]] = {}
        for symptom in UnchangedParameter().check(evidence):
            still.setdefault(symptom.step, []).append(symptom)
        for step, symptoms in still.items():
            strided, moving = _not_contiguous(evidence, step), _moving(evidence, step)
            facts = evidence.facts_at(step)
            if facts is None or any(each.row not in strided for each in symptoms):
                continue
            optimizer_of = membership_of(facts).optimizer_of
            apart = {optimizer_of.get(name) for name in moving & strided}
            for each in symptoms:
                if optimizer_of.get(each.row) not in apart:
                    text = f"{_TEXT}, and those that move are: the step writes into a copy"
                    yield replace(each, text=text, is_fact=True)


def _not_contiguous(evidence: Evidence, step: int) -> set[str]:
    facts = evidence.facts_at(step)
    found = () if facts is None else facts.sightings
    return {row for each in found if each.kind in _KINDS for row in each.rows}


def _moving(evidence: Evidence, step: int) -> set[str]:
    """The names of the parameters that a step has changed."""
    track = evidence.track("update", "abs_max")
    if track is None:
        return set()
    at = int(np.searchsorted(track.steps, step))
    return {track.names[column] for column in np.flatnonzero(track.values[at] > 0).tolist()}


RULES: Final[tuple[HealthRule, ...]] = (CopyUpdated(),)
"""The rule on copies, with its defaults."""
