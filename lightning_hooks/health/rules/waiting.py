"""The rule on the time that passes between steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from lightning_hooks.health.rule import HealthRule, Severity


@dataclass(frozen=True, kw_only=True)
class WaitsForData(HealthRule):
    """Most of the time of a step passes between the end of a step and the next batch: the training waits for its data.

    The steps 10 to 60 are timed. On a GPU, only the time counts in which the GPU has nothing to do, so that data that are
    prepared while it works do not count. Waiting costs time and no quality.
    """

    patience: int = 1
    every_n_steps: int = 5
    severity: Severity = Severity.INFO
    family: ClassVar[str] = "facts"
    looks_for: ClassVar[tuple[str, ...]] = ("waits-for-data",)
    next_steps: ClassVar[tuple[str, ...]] = (
        "Give the DataLoader more workers: `num_workers`, with `persistent_workers=True` where epochs are short.",
        "Decode, resize and tokenize the data once, before the training.",
        "If callbacks or logging do much after each step, let them act less often.",
    )
    source: ClassVar[str] = "ours: half of a step, and 20 ms, as the median of 49 steps"
    consequence: ClassVar[str] = (
        "The device has nothing to do for most of the time, so that the training takes a multiple of the time that it needs."
    )
    false_alarm: ClassVar[str] = (
        "Only time is lost, never quality, so that the finding is information. Slow callbacks between two steps count as well."
    )


RULES: Final[tuple[HealthRule, ...]] = (WaitsForData(),)
"""The rule on the time between steps, with its defaults."""
