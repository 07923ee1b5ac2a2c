"""Rules on the seam of a resume: what a fit that goes on from a checkpoint has lost, or has otherwise than before."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from lightning_hooks.health.evidence import Evidence
from lightning_hooks.health.rule import HealthRule, Kind, Severity, Symptom
from lightning_hooks.health.rules.spikes import largest_deviation


@dataclass(frozen=True, kw_only=True)
class StateNotRestored(HealthRule):
    """A fit goes on without the moments or step counts of its optimizers, or with a schedule that begins again.

    What the checkpoint kept of them is compared, where a `HealthMonitor` has saved it; else the number of the first step, the
    step counts of the optimizers and those of the schedules are compared with each other. A fit that begins with everything
    new, as fine-tuning does, is not judged.
    """

    patience: int = 1
    every_n_steps: int = 5
    family: ClassVar[str] = "facts"
    looks_for: ClassVar[tuple[str, ...]] = ("state-lost",)
    kind: ClassVar[Kind] = "pattern"
    next_steps: ClassVar[tuple[str, ...]] = (
        "Save `optimizer.state_dict()` and `scheduler.state_dict()` beside the weights, and load both before the first step.",
        "Make the schedule before the state of its optimizer is loaded: a new schedule sets the rate anew.",
        "With a Trainer resume by `fit(model, ckpt_path=…)`; `load_from_checkpoint` restores the weights alone.",
    )
    source: ClassVar[str] = (
        "a definition; of moments, a norm that differs by a hundredth, more than a cast to bfloat16 changes it"
    )
    consequence: ClassVar[str] = (
        "Moments that start at 0 and a schedule that starts over make the first steps after a resume too large or too small."
    )
    false_alarm: ClassVar[str] = (
        "A new stage of a training may start with a fresh optimizer on purpose. The finding is a note until the loss shows "
        "harm."
    )


@dataclass(frozen=True, kw_only=True)
class ResumedOtherwise(HealthRule):
    """A fit goes on otherwise than it was saved, which is often on purpose.

    The rate or the optimizer is another one; generators of random numbers begin again or only some of them were restored; the
    loader begins its order anew within an epoch.
    """

    patience: int = 1
    every_n_steps: int = 5
    severity: Severity = Severity.INFO
    family: ClassVar[str] = "facts"
    looks_for: ClassVar[tuple[str, ...]] = ("resumed-otherwise",)
    next_steps: ClassVar[tuple[str, ...]] = (
        "If it is not on purpose, search for code that sets the rate, or makes an optimizer, after the state is loaded.",
        "Seed a process that resumes by its step, or save the states of all generators and load them before the first step.",
    )
    source: ClassVar[str] = "a definition; rates that differ by a thousandth"
    consequence: ClassVar[str] = (
        "The second part of the training does not continue the first one, so that the two cannot be compared as one run."
    )
    false_alarm: ClassVar[str] = (
        "Changing the rate or the optimizer at a resume is often on purpose, and random numbers that come again seldom harm, "
        "so that the finding is information."
    )


@dataclass(frozen=True, kw_only=True)
class LossAfterResume(HealthRule):
    """The loss after a resume is not where it was before.

    Args:
        times: the multiple of the largest deviation of the losses before by which the level must differ.
    """

    patience: int = 1
    every_n_steps: int = 5
    severity: Severity = Severity.INFO
    times: float = 2.0
    family: ClassVar[str] = "facts"
    looks_for: ClassVar[tuple[str, ...]] = ("resumed",)
    next_steps: ClassVar[tuple[str, ...]] = (
        "Compare a batch and its loss before and after the resume: weights, data, and modes of layers should be the same.",
    )
    source: ClassVar[str] = "the median of 10 losses, against all of the 50 before; 32 losses are needed for a level"
    consequence: ClassVar[str] = (
        "The model does not continue from the state that was saved: weights, data or modes of layers are not what they were."
    )
    false_alarm: ClassVar[str] = (
        "Another order of the data, or a harder part of it, also moves the loss. The finding is information, and compares ten "
        "losses with fifty."
    )

    def check(self, evidence: Evidence) -> Iterable[Symptom]:
        for symptom in super().check(evidence):
            text = self._jump(evidence, int(symptom.measured))
            if text:
                yield Symptom("", tensor="", step=symptom.step, measured=1.0, threshold=0.0, text=text)

    def _jump(self, evidence: Evidence, seam: int) -> str:
        loss = evidence.loss()
        if loss is None or not loss.values.shape[1]:
            return ""
        values, finite = loss.values[:, 0], np.isfinite(loss.values[:, 0])
        before, after = values[finite & (loss.steps < seam)][-50:], values[finite & (loss.steps >= seam)][:10]
        if len(before) < 32 or len(after) < 10:
            return ""
        level, deviation = largest_deviation(before)
        now = float(np.median(after))
        if now <= level + self.times * deviation:
            return ""
        return f"the loss is {now:.4g} in the 10 steps since the fit goes on at step {seam}, and was {level:.4g} before"


def what_is_lost(evidence: Evidence, begin: int) -> str:
    """What a fit goes on without, as a sentence behind another one; empty if it is not known."""
    facts = evidence.facts_at(begin) or evidence.facts
    found = () if facts is None else facts.sightings
    texts = [each.text for each in found if each.kind in StateNotRestored.looks_for]
    return "".join(f" {text[:1].upper()}{text[1:]}." for text in texts)


RULES: Final[tuple[HealthRule, ...]] = (StateNotRestored(), ResumedOtherwise(), LossAfterResume())
"""The rules on the seam of a resume, with their defaults."""
