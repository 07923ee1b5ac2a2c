"""The cause that joins findings against a good run: a fact that was changed, and the numbers that follow from it."""

from __future__ import annotations

from typing import Final

from lightning_hooks.health.cause_rule import CauseRule
from lightning_hooks.health.cause_table import CAUSES
from lightning_hooks.health.reference.rules import REFERENCE_RULES
from lightning_hooks.health.reference.rules_numbers import NUMBERS

CAUSES_WITH_REFERENCE: Final[tuple[CauseRule, ...]] = (
    *CAUSES,
    CauseRule(
        name="TrainingChanged",
        message="A fact of the training differs from the good run, and numbers have left their bands: since step {step}.",
        required=(NUMBERS.name,),
        any_of=tuple(name for name in REFERENCE_RULES if name != NUMBERS.name),
        next_steps=(
            "Look at the fact first: the numbers may follow from it.",
            "If the change is meant, accept the findings, or make a new baseline from a run that has it.",
        ),
        alternatives=("Two changes at once: then the numbers stay outside when the fact is as in the good run again.",),
    ),
)
"""The causes that the package knows, with the one that a reference adds."""
