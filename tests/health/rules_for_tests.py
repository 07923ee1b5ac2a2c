"""Small rules for tests."""

from dataclasses import dataclass
from typing import ClassVar

from lightning_hooks.health.rule import HealthRule, Symptom, symptoms_where

Needs = ClassVar[tuple[tuple[str, str], ...]]


@dataclass(frozen=True, kw_only=True)
class Huge(HealthRule):
    """A gradient reaches a number."""

    most: float = 10.0
    patience: int = 3
    every_n_steps: int = 5
    family: ClassVar[str] = "gradients"
    needs: Needs = (("grad", "abs_max"),)
    next_steps: ClassVar[tuple[str, ...]] = ("Clip it.",)
    source: ClassVar[str] = "a test"

    def check(self, evidence):
        track = evidence.track("grad", "abs_max")
        return symptoms_where(track, track.values > self.most, self.most, lambda value: f"gradient reaches {value:g}")


@dataclass(frozen=True, kw_only=True)
class LowScale(HealthRule):
    """The loss scale is low: a fact, looked at every step."""

    patience: int = 1
    every_n_steps: int = 1
    family: ClassVar[str] = "facts"

    def can_run(self, evidence):
        return None if evidence.facts else "nobody knows how the steps trained"

    def check(self, evidence):
        for step in evidence.new_steps.tolist():
            facts = evidence.facts_at(step)
            if facts is not None and facts.loss_scale < 1:
                yield Symptom("", tensor="", step=step, measured=facts.loss_scale, threshold=1.0, text="the loss scale is low")


@dataclass(frozen=True, kw_only=True)
class Raises(HealthRule):
    """A rule with an error."""

    every_n_steps: int = 2

    def check(self, evidence):
        raise ZeroDivisionError("no luck")
