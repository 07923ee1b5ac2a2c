"""The rule on the pace of a whole fit: steps so small that the loss still falls as fast as at first when the fit ends."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.health.cross_entropy import begins_trained
from lightning_hooks.health.evidence import LOSS, Evidence
from lightning_hooks.health.roles import Array, percent, roles_of
from lightning_hooks.health.rule import HealthRule, Symptom
from lightning_hooks.health.rules.base import Needs, Obstacles, no_loss, no_structure
from lightning_hooks.health.rules.updates import started_above_zero
from lightning_hooks.health.usage import LOSS_COUNT, losses_may_balance
from lightning_hooks.health.witness import error_of, noise_of

_FIRST: Final = 5
"""The number of first losses that are left out, because a bias learns the mean of the targets in them."""
_LEAST: Final = 48
"""The smallest number of losses from which the pace of a fit is read."""


def _no_end(evidence: Evidence) -> str | None:
    """An obstacle of a rule on whole fits."""
    is_known = evidence.facts is not None and evidence.facts.last_step is not None
    return None if is_known else "nobody knows how long the fit is"


def _balanced_losses(evidence: Evidence) -> str | None:
    """An obstacle: of a GAN, say, no loss need fall."""
    return "several optimizers train with losses that may balance" if losses_may_balance(evidence) else None


class _Course(NamedTuple):
    """The course of a loss.

    Args:
        first: the level at the beginning of the window.
        last: the level at its end.
        pace: the slope in the second half of the window, as a share of that in the first half; 0 if it did not fall there.
        is_clear: whether the loss has fallen by more than its noise, in the window and in its second half.
    """

    first: float
    last: float
    pace: float
    is_clear: bool


@dataclass(frozen=True, kw_only=True)
class SlowLearning(HealthRule):
    """The fit ends, no weight has moved far, and the loss, most of which is left, still falls nearly as fast as at first.

    The way of a weight is the sum of its updates, each as a share of the weight; a weight that started at about zero has none.
    If that is hardly any, the model is what it was, whatever the noise of the loss shows of its pace.

    Args:
        most: the longest way of a weight that is small: a fifth of the weight.
        least: the longest way of a weight that is hardly any.
        least_step: the mean share of a weight that a step must change not to be small: half of the usual one.
        pace: the smallest share of the first pace at which the loss must still fall.
        left: the smallest share of the first loss that must be left.
        end: the share of the fit that must be over.
        times: the number of standard errors by which the loss must have fallen.
    """

    most: float = 0.2
    least: float = 0.1
    least_step: float = 5e-4
    pace: float = 0.6
    left: float = 0.5
    end: float = 0.9
    times: float = 4.0
    patience: int = 1
    every_n_steps: int = 20
    family: ClassVar[str] = "updates"
    obstacles: ClassVar[Obstacles] = (_balanced_losses, no_loss, no_structure, _no_end)
    needs: ClassVar[Needs] = (
        LOSS_COUNT,
        ("update", "ratio"),
        ("param", "rms"),
        ("output", "count"),
        ("output_grad", "rms"),
        ("output_grad", "mean"),
        ("output", "rms"),
        ("output", "unit_variation"),
    )
    next_steps: ClassVar[tuple[str, ...]] = (
        "Raise the learning rate, ten times first.",
        "Compare `grad` with `final_grad`: clipping may leave almost nothing. With Adam, compare the gradient with eps.",
        "If the rate is right, train for longer: the loss was still falling.",
    )
    source: ClassVar[str] = (
        "ours: in healthy drawn trainings that began untrained some weight moves by more than a fifth, or the loss falls at "
        "less than half of its first pace when they end. In none of 231 did all weights move by less than a tenth while half "
        "of the loss was left. About 1e-3 is the usual share of a step (cs231n)"
    )
    consequence: ClassVar[str] = "The fit ends long before the model has learned what it could learn in as many steps."
    false_alarm: ClassVar[str] = (
        "Fine-tuning with a small rate looks alike. A loss that begins lower than that of a model which knows nothing is left "
        "out, where the outputs show it; else accept the finding."
    )

    def check(self, evidence: Evidence) -> Iterable[Symptom]:
        last = None if evidence.facts is None else evidence.facts.last_step
        count = evidence.step - evidence.first_step + 1
        if last is None or count < max(_LEAST, self.end * (last - evidence.first_step)):
            return
        course, way = self._course(evidence), _longest_way(evidence, count)
        if course is None or not 0 < way <= self.most or begins_trained(evidence):
            return
        began = evidence.start(*LOSS)
        first = course.first if began is None else max(course.first, float(began[0]))
        if course.last < self.left * first:
            return
        text = f"in {count} steps no weight has moved by more than {percent(way)} of itself in all, and the loss"
        if course.is_clear and course.pace >= self.pace:
            text += f", which went from {course.first:.4g} to {course.last:.4g},"
            text += f" still falls at {percent(course.pace)} of its first pace"
        elif way <= min(self.least, self.least_step * count):
            text += f" went from {first:.4g} to {course.last:.4g}"
        else:
            return
        yield Symptom(
            "", tensor="", step=evidence.step, measured=way, threshold=self.most, text=text, since=evidence.first_step
        )

    def _course(self, evidence: Evidence) -> _Course | None:
        """The course of the loss in the window; None if it is too short or below 0."""
        loss = evidence.loss()
        if loss is None or not loss.values.shape[1]:
            return None
        is_known = np.isfinite(loss.values[:, 0]) & (loss.steps >= evidence.first_step + _FIRST)
        values, steps = loss.values[is_known, 0], loss.steps[is_known]
        if len(values) < _LEAST or values.min() <= 0:
            return None
        half, third, eighth = len(values) // 2, len(values) // 3, len(values) // 8
        first_slope, second_slope = _slope(steps[:half], values[:half]), _slope(steps[half:], values[half:])
        noise = noise_of(values)
        fall = float(np.median(values[:third]) - np.median(values[-third:]))
        later = values[half:]
        late = float(np.median(later[: len(later) // 2]) - np.median(later[len(later) // 2 :]))
        is_clear = fall > self.times * error_of(noise, third, third) and late > error_of(noise, half // 2, half // 2)
        begin, end = float(np.median(values[:eighth])), float(np.median(values[-eighth:]))
        pace = second_slope / first_slope if first_slope < 0 else 0.0
        return _Course(begin, end, pace, is_clear)


def _slope(steps: NDArray[np.int64], values: Array) -> float:
    """The slope of the line through some numbers."""
    return float(np.polyfit(steps - steps[0], values, 1)[0])


def _longest_way(evidence: Evidence, count: int) -> float:
    """The largest sum of the updates of a weight in all steps, as a share of it; 0 if none is measured.

    Where the window does not hold all steps, the mean of the steps that it holds stands for them, or that of the first steps
    if it is larger.
    """
    track, roles, early = evidence.track("update", "ratio"), roles_of(evidence), evidence.early("update", "ratio")
    if track is None or roles is None or early is None:
        return 0.0
    weights = started_above_zero(evidence, roles, track.names)
    values = track.values[:, weights]
    measured = np.isfinite(values)
    counts = measured.sum(axis=0)
    means = np.where(measured, values, 0.0).sum(axis=0) / np.maximum(counts, 1)
    if not evidence.holds_start:
        means = np.fmax(means, early[weights])
    return float(means.max(initial=0.0)) * count


RULES: Final[tuple[HealthRule, ...]] = (SlowLearning(),)
"""The rule on the pace of a fit, with its defaults."""
