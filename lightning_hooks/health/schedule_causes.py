"""The causes that lie in the schedule of a learning rate, as far as lookouts have seen it."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from lightning_hooks.health.cause_effects import DULL, STUCK
from lightning_hooks.health.cause_rule import CauseRule
from lightning_hooks.health.rules.schedules import RULES, ScheduleAdvancesEachBatch, ScheduleAtOtherPace, WarmUpOutlastsFit
from lightning_hooks.health.sighted import said

_SAID: Final = said(*(kind for rule in RULES for kind in rule.looks_for))
_EFFECTS: Final = (
    *("ScheduleEndsEarly", "WarmUpOutlastsFit", "LearningRateFallen", "ScheduleAdvancesEachBatch", "LearningRateZero"),
    *(*STUCK, *DULL, "LostUpdates", "SlowLearning"),
)
_ALTERNATIVES: Final = (
    "A fit that is shorter than its plan on purpose, as one of a few steps that tries the code: accept the finding.",
)


SCHEDULE_MISMATCH: Final[tuple[CauseRule, ...]] = (
    CauseRule(
        name="ScheduleMismatch",
        message="The schedule of the learning rate is advanced at another pace than it was made for.",
        required=("ScheduleAtOtherPace",),
        supporting=_EFFECTS,
        next_steps=ScheduleAtOtherPace.next_steps,
        confidence="certain",
        detail=_SAID,
    ),
    CauseRule(
        name="ScheduleMismatch",
        message="The schedule of the learning rate is advanced after each batch, and has come to its end too early.",
        required=("ScheduleAdvancesEachBatch",),
        any_of=("LearningRateZero", "LearningRateFallen"),
        supporting=_EFFECTS,
        next_steps=ScheduleAdvancesEachBatch.next_steps,
        alternatives=("A schedule that is made for all batches, in a training that goes on after it: then train less long.",),
        detail=_SAID,
    ),
)
"""A schedule that is advanced at another pace than it was made for."""

_RATE_GONE: Final = CauseRule(
    name="LearningRateTooLow",
    message="The schedule of the learning rate does not suit the length of the training.",
    any_of=("ScheduleEndsEarly", "LearningRateFallen"),
    supporting=_EFFECTS,
    next_steps=(
        "Look at what the schedule does: the number of steps that it was given, and how often it is stepped.",
        "Let the rate fall over the whole fit.",
    ),
    alternatives=_ALTERNATIVES,
    detail=_SAID,
)
RATE_GONE: Final = (
    replace(_RATE_GONE, any_of=("WarmUpOutlastsFit",), next_steps=WarmUpOutlastsFit.next_steps),
    _RATE_GONE,
)
"""A schedule that leaves hardly any rate for most of a training."""
