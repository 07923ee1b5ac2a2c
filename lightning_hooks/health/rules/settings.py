"""Rules on the settings of optimizers that are the same at each step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from lightning_hooks.health.rule import HealthRule, Kind


@dataclass(frozen=True, kw_only=True)
class BetasSwapped(HealthRule):
    """The first beta of Adam is larger than the second one.

    If the mean of the gradients is over ten times more steps than that of their squares, it is a warning, else a note.
    """

    patience: int = 1
    every_n_steps: int = 5
    family: ClassVar[str] = "facts"
    kind: ClassVar[Kind] = "pattern"
    looks_for: ClassVar[tuple[str, ...]] = ("betas-swapped",)
    next_steps: ClassVar[tuple[str, ...]] = ("Give betas in their order: that of the gradients first, as (0.9, 0.999).",)
    source: ClassVar[str] = (
        "ours: Adam is known to converge with a first beta below the root of the second; tuned betas are (0.5, 0.9) to "
        "(0.95, 0.999), which no optimizer of torch has the other way round by default"
    )
    consequence: ClassVar[str] = (
        "The average of the gradients then spans more steps than that of their squares, so that steps can become very large "
        "after a quiet stretch."
    )
    false_alarm: ClassVar[str] = (
        "Unusual betas may come from a search. The finding is a note unless the first average spans more than ten times the "
        "steps of the second."
    )


@dataclass(frozen=True, kw_only=True)
class EpsilonVanishes(HealthRule):
    """The eps of an optimizer is 0 in float16, the format of its weights and its state, so that it divides by 0.

    Numbers below 3e-8 are 0 there. A copy of the weights in float32, which mixed precision has, is not concerned.
    """

    patience: int = 1
    every_n_steps: int = 5
    family: ClassVar[str] = "facts"
    looks_for: ClassVar[tuple[str, ...]] = ("epsilon-zero",)
    next_steps: ClassVar[tuple[str, ...]] = (
        'Keep weights in float32 and compute in float16 (`precision="16-mixed"`, autocast), or train in bfloat16.',
        "If weights must be float16, give the optimizer eps=1e-4.",
    )
    source: ClassVar[str] = "the definition of float16, whose smallest number is 6e-8"
    consequence: ClassVar[str] = "The optimizer divides by a root that can be 0, and weights become infinite or NaN."
    false_alarm: ClassVar[str] = (
        "An optimizer that keeps its state in float32 while its weights are float16 is not told. No usual false alarm is known."
    )


RULES: Final[tuple[HealthRule, ...]] = (BetasSwapped(), EpsilonVanishes())
"""The rules on settings, with their defaults."""
