"""Rules on the schedule of the learning rate: its length, its pace, and where it has taken the rate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from lightning_hooks.health.rule import HealthRule, Kind, Severity


@dataclass(frozen=True, kw_only=True)
class ScheduleAtOtherPace(HealthRule):
    """A schedule that was made for the steps of the fit is advanced once an epoch, or one for epochs after each step.

    It is said before the first update, where a Trainer knows how long the fit is and advances the schedule itself.
    """

    patience: int = 1
    every_n_steps: int = 5
    family: ClassVar[str] = "facts"
    looks_for: ClassVar[tuple[str, ...]] = ("schedule-pace",)
    next_steps: ClassVar[tuple[str, ...]] = (
        'Advance the schedule at the pace that it was made for: in Lightning, return its `"interval"`, `"step"` or `"epoch"`.',
        "Or make it for the advances of this fit; Lightning counts the steps in `self.trainer.estimated_stepping_batches`.",
    )
    source: ClassVar[str] = (
        "ours: the length is the number of steps or batches of the fit by 2 %, or that of its epochs, and is advanced at "
        "another pace; or half of the fit has a hundred-millionth of the rate"
    )
    consequence: ClassVar[str] = (
        "The learning rate reaches its end far too early, or hardly leaves its beginning, so that most steps train with a "
        "wrong rate."
    )
    false_alarm: ClassVar[str] = (
        "A schedule whose length equals the number of steps or epochs by chance, and whose pace is meant, looks the same. "
        "Accept the finding."
    )


@dataclass(frozen=True, kw_only=True)
class ScheduleEndsEarly(HealthRule):
    """A schedule has the rate above a tenth of its largest in less than a tenth of the fit, and never again.

    A fit that something else than its planned length will end may have such a schedule on purpose.
    """

    patience: int = 1
    every_n_steps: int = 5
    family: ClassVar[str] = "facts"
    kind: ClassVar[Kind] = "pattern"
    looks_for: ClassVar[tuple[str, ...]] = ("schedule-early",)
    next_steps: ClassVar[tuple[str, ...]] = (
        "Look at the number of steps that the schedule was given, and at how often it is advanced.",
        "Let the rate fall over the whole fit.",
    )
    source: ClassVar[str] = "ours: cosine, linear and exponential schedules of a whole fit stay above a tenth for most of it"
    consequence: ClassVar[str] = (
        "Nine tenths of the fit train with hardly any learning rate, which costs time and changes little."
    )
    false_alarm: ClassVar[str] = (
        "A fit that is ended by early stopping may have a planned length that it never reaches. The finding is a note until "
        "the loss shows harm."
    )


@dataclass(frozen=True, kw_only=True)
class WarmUpOutlastsFit(HealthRule):
    """The rate still rises when the fit ends, and has not reached a fifth of what its schedule was made to reach.

    A fit that only tries a few steps of a longer one has such a schedule on purpose.
    """

    patience: int = 1
    every_n_steps: int = 5
    family: ClassVar[str] = "facts"
    kind: ClassVar[Kind] = "pattern"
    looks_for: ClassVar[tuple[str, ...]] = ("warm-up-endless",)
    next_steps: ClassVar[tuple[str, ...]] = (
        "Shorten the warm-up to some per cent of the steps of the fit.",
        "Look at how often the schedule is advanced: after each step or each epoch.",
    )
    source: ClassVar[str] = "ours: a warm-up usually takes 1 to 10 % of a fit"
    consequence: ClassVar[str] = (
        "The model never trains at the rate that the schedule was made for, and learns slower than it could."
    )
    false_alarm: ClassVar[str] = (
        "A short trial of a longer training has such a schedule on purpose. The finding is a note until the loss shows harm."
    )


@dataclass(frozen=True, kw_only=True)
class LearningRateFallen(HealthRule):
    """The learning rate fell to a thousandth of its largest, and was above a tenth of it for a quarter of the steps at most."""

    patience: int = 1
    every_n_steps: int = 5
    family: ClassVar[str] = "facts"
    kind: ClassVar[Kind] = "pattern"
    looks_for: ClassVar[tuple[str, ...]] = ("rate-fallen",)
    next_steps: ClassVar[tuple[str, ...]] = (
        "Look at what the schedule does: the number of steps that it was given, and how often it is stepped.",
        "Let the rate fall over the whole training.",
    )
    source: ClassVar[str] = "ours: a cosine is above a tenth of its largest rate for 80 % of a training, a linear fall for 90 %"
    consequence: ClassVar[str] = (
        "Most steps were taken at a thousandth of the largest rate, so that they changed hardly anything."
    )
    false_alarm: ClassVar[str] = (
        "A schedule with a short peak may be meant, as in one-cycle training. The finding is a note until the loss shows harm."
    )


@dataclass(frozen=True, kw_only=True)
class ScheduleAdvancesEachBatch(HealthRule):
    """The learning rate changes between the batches that are added up for one step of the optimizer.

    It is a note: a schedule may be made for batches, or follow the share of an epoch that is done.
    """

    patience: int = 1
    every_n_steps: int = 5
    severity: Severity = Severity.INFO
    family: ClassVar[str] = "facts"
    looks_for: ClassVar[tuple[str, ...]] = ("rate-each-batch",)
    next_steps: ClassVar[tuple[str, ...]] = (
        "Advance the schedule where the optimizer steps, or make it for the number of all batches.",
    )
    source: ClassVar[str] = "a definition; at three of the first twelve steps"
    consequence: ClassVar[str] = (
        "The schedule advances several times for each step of the optimizer, so that it ends after a share of the planned "
        "steps."
    )
    false_alarm: ClassVar[str] = (
        "A schedule that counts batches on purpose, or follows the share of the epoch, is right. The finding is therefore "
        "information."
    )


RULES: Final[tuple[HealthRule, ...]] = (
    ScheduleAtOtherPace(),
    ScheduleEndsEarly(),
    WarmUpOutlastsFit(),
    LearningRateFallen(),
    ScheduleAdvancesEachBatch(),
)
"""The rules on schedules, with their defaults."""
