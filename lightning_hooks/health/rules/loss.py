"""Rules on the loss: spikes, a loss that has diverged, one that has never moved."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from lightning_hooks.health.evidence import LOSS, Evidence
from lightning_hooks.health.roles import Array
from lightning_hooks.health.rule import HealthRule, Severity, Symptom
from lightning_hooks.health.rules.base import WITNESS, Obstacles, no_loss
from lightning_hooks.health.rules.spikes import LOCAL, largest_deviation, six_sigma, spikes
from lightning_hooks.health.witness import falls


def _balanced_losses(evidence: Evidence) -> str | None:
    """An obstacle: of a GAN, say, the sum of the losses may stay where it is."""
    facts = evidence.facts
    return "several optimizers train with losses that may balance" if facts is not None and len(facts.optimizers) > 1 else None


def _known(evidence: Evidence) -> tuple[Array, list[int], int]:
    """The finite losses of the window, their steps, and the number of them that the rule has judged before."""
    loss = evidence.loss()
    if loss is None or not loss.values.shape[1]:
        return np.empty(0), [], 0
    values = loss.values[:, 0]
    finite = np.isfinite(values)
    return values[finite], loss.steps[finite].tolist(), int(finite[: loss.new.start].sum())


@dataclass(frozen=True, kw_only=True)
class LossSpike(HealthRule):
    """The loss of a single step is far above all that came before, and comes back within a few steps.

    The largest deviation of the window counts as usual, so that losses with heavy tails, of games and of policies stay silent.

    Args:
        sigmas: the smallest distance from the mean of the last 128 steps, in standard deviations.
        times: the smallest multiple of the largest deviation in these steps from the level before it.
        least_share: the smallest rise as a share of the early loss: ripples of a loss that is almost 0 do no harm.
        settle: the number of steps within which the loss must come back by half.
    """

    sigmas: float = 6.0
    times: float = 4.0
    least_share: float = 0.1
    settle: int = 2
    patience: int = 1
    every_n_steps: int = 10
    family: ClassVar[str] = "loss"
    obstacles: ClassVar[Obstacles] = (no_loss,)
    next_steps: ClassVar[tuple[str, ...]] = (
        "Look at the batch of this step: labels, missing values, and the scale of its inputs.",
        "If spikes become more frequent, lower the learning rate or clip the gradient.",
    )
    source: ClassVar[str] = (
        "OLMo-core skips steps at 6 standard deviations of the last 128; 4 times the largest deviation is ours"
    )

    def check(self, evidence: Evidence) -> Iterable[Symptom]:
        track, early = evidence.loss(), evidence.early(*LOSS)
        if track is None or early is None or not np.isfinite(early[0]):
            return
        least = self.least_share * abs(float(early[0]))

        def limit_of(history: Array) -> float:
            level, deviation = largest_deviation(history)
            return level + max(self.times * deviation, least)

        def usual(history: Array) -> float:
            return six_sigma(history, self.sigmas)

        def near(history: Array) -> float:
            # This limit is cheap and never above that of limit_of(), so that most steps need no further limit.
            return float(history[-LOCAL:].min()) + least

        values = track.values[:, 0]
        for spike in spikes(values, track.new, [near, usual, limit_of], self.settle):
            value, step = float(values[spike.at]), int(track.steps[spike.at])
            text = f"the loss jumps to {value:.4g} at step {step}, and had stayed below {spike.limit:.4g}"
            yield Symptom(
                "", tensor="", step=int(track.steps[spike.back]), measured=value, threshold=spike.limit, text=text, since=step
            )


@dataclass(frozen=True, kw_only=True)
class LossDiverged(HealthRule):
    """The loss stays far above its start.

    A multiple of the *minimum* is no sign of divergence: losses that have nearly reached 0 exceed it at all times.

    Args:
        most: the multiple of the largest of the first losses.
        first: the number of first losses.
        last: the number of last losses that all exceed it.
    """

    most: float = 4.0
    first: int = 5
    last: int = 10
    patience: int = 1
    every_n_steps: int = 10
    severity: Severity = Severity.CRITICAL
    family: ClassVar[str] = "loss"
    obstacles: ClassVar[Obstacles] = (no_loss,)
    next_steps: ClassVar[tuple[str, ...]] = (
        "Divide the learning rate by 10, or warm it up; clip the norm of the gradient.",
        "If the samples come in a fixed order, shuffle them.",
    )
    source: ClassVar[str] = (
        "TheDeepChecker warns at 2 × the minimum, which fires on healthy trainings; 4 × the start at ten steps in a row: ours"
    )

    def check(self, evidence: Evidence) -> Iterable[Symptom]:
        values, steps, judged = _known(evidence)
        start = evidence.start("loss", "mean")
        if start is None or len(values) < self.last + self.first or judged >= len(values):
            return
        begin = float(start[0])
        if int(evidence.steps[0]) == evidence.first_step:
            begin = max(begin, float(values[: self.first].min()))
        lowest, limit = float(values[-self.last :].min()), self.most * begin
        if begin > 0 and lowest > limit:
            below = np.flatnonzero(values <= limit)
            since = steps[int(below[-1]) + 1 if len(below) else 0]
            text = f"the loss stays above {lowest:.4g}, and it began at {begin:.4g}"
            yield Symptom("", tensor="", step=steps[-1], measured=lowest, threshold=limit, text=text, since=since)


@dataclass(frozen=True, kw_only=True)
class LossUnbounded(HealthRule):
    """The loss falls without end below 0.

    Args:
        times: the multiple of the magnitude of the first loss, or of 1 if that is less, below which a negative loss has no
            bound.
        last: the number of last losses that are all below it.
    """

    times: float = 1e3
    last: int = 10
    patience: int = 1
    every_n_steps: int = 10
    family: ClassVar[str] = "loss"
    obstacles: ClassVar[Obstacles] = (no_loss,)
    next_steps: ClassVar[tuple[str, ...]] = (
        "Look whether the sign of the loss is right: a log-likelihood is to be maximised, so its negative is the loss.",
        "Give the loss a lower bound.",
    )
    source: ClassVar[str] = (
        "ours: no training of the healthy gallery falls three orders of magnitude below 0; one order is usual, for example of "
        "an actor whose loss is the negative of a value"
    )

    def check(self, evidence: Evidence) -> Iterable[Symptom]:
        values, steps, judged = _known(evidence)
        start = evidence.start("loss", "mean")
        if start is None or len(values) < self.last or judged >= len(values):
            return
        begin = float(start[0])
        limit, highest = self.times * max(abs(begin), 1.0), float(values[-self.last :].max())
        if highest < -limit and evidence.loss_falls(WITNESS):
            text = f"the loss has fallen to {values[-1]:.4g}, began at {begin:.4g}, and still falls"
            yield Symptom("", tensor="", step=steps[-1], measured=-highest, threshold=limit, text=text)


@dataclass(frozen=True, kw_only=True)
class LossConstant(HealthRule):
    """The loss has not moved since the training began.

    Its median has not fallen from the first to the last quarter, neither by a small share nor by more than its noise, and it
    varies by less than a small share from step to step.
    Trainings with several optimizers, whose losses balance, and those whose rate still rises are left out.

    Args:
        spread: the largest standard deviation as a share of the loss.
        least: the smallest relative fall that counts as learning.
        steps: the number of first steps in which nothing has moved.
        count: the number of measured losses among them.
    """

    spread: float = 0.05
    least: float = 0.005
    steps: int = 50
    count: int = 32
    patience: int = 1
    every_n_steps: int = 10
    family: ClassVar[str] = "loss"
    obstacles: ClassVar[Obstacles] = (_balanced_losses, no_loss)
    next_steps: ClassVar[tuple[str, ...]] = (
        "Try to overfit a single batch: if the loss of it does not fall, the model or the loss is at fault, not the data.",
        "Look which layers have small updates, no gradient or constant outputs.",
    )
    source: ClassVar[str] = (
        "smdebug LossNotDecreasing (0.1 % in 10 steps) fires on every healthy training; no fall in the first 50 steps: ours"
    )

    def check(self, evidence: Evidence) -> Iterable[Symptom]:
        values, steps, judged = _known(evidence)
        if len(values) < self.count or judged >= len(values) or int(evidence.steps[0]) != evidence.first_step:
            return
        if steps[-1] - steps[0] < self.steps:
            return
        quarter = self.count // 4
        first, last = float(np.median(values[:quarter])), float(np.median(values[-quarter:]))
        middle = abs(first)
        # A loss of about 0 cannot fall any further, so a constant one is no fault.
        if middle < 1e-8 or last < first - self.least * middle or falls(values, len(values)) or self._rises(evidence, steps):
            return
        best = min(float(np.median(values[i : i + quarter])) for i in range(quarter, len(values) - quarter + 1, 5))
        if best < first - self.least * middle:
            return
        spread = float(np.std(np.diff(values))) / np.sqrt(2)
        if spread < self.spread * middle:
            text = f"the loss was {first:.5g} in the first {quarter} steps and is {last:.5g} in the last {quarter}"
            yield Symptom(
                "",
                tensor="",
                step=steps[-1],
                measured=max(0.0, 1 - best / first),
                threshold=self.least,
                text=text,
                since=steps[0],
            )

    def _rises(self, evidence: Evidence, steps: list[int]) -> bool:
        """Whether the learning rate has risen in the second half of the steps, as in a warm-up."""
        before, now = evidence.facts_at(steps[len(steps) // 2]), evidence.facts
        if before is None or now is None:
            return False
        return _largest_rate(now.optimizers) > 1.001 * _largest_rate(before.optimizers)


def _largest_rate(optimizers: Iterable[object]) -> float:
    groups = [group for each in optimizers for group in each.groups]  # type: ignore[attr-defined]
    return max((group.lr for group in groups if group.lr is not None), default=0.0)


RULES: Final[tuple[HealthRule, ...]] = (
    LossSpike(),
    LossDiverged(),
    LossUnbounded(),
    LossConstant(),
)
"""The rules on the loss, with their defaults."""
