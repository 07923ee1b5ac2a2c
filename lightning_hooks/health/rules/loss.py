"""Rules on the loss: spikes, a loss that has diverged, one that has never moved."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from lightning_hooks.health.chance import Chance, chance_reached, chance_since, doubt_of, late_losses
from lightning_hooks.health.cross_entropy import cross_entropy_of
from lightning_hooks.health.evidence import LOSS, Evidence
from lightning_hooks.health.loss_line import LOSS_LINE
from lightning_hooks.health.negated import factor_of_square, grows_with_outputs, growth_below_zero
from lightning_hooks.health.roles import Array, medians, roles_of
from lightning_hooks.health.rule import HealthRule, Severity, Symptom
from lightning_hooks.health.rules.base import WITNESS, Needs, Obstacles, no_loss
from lightning_hooks.health.rules.rows_behind import ROWS_BEHIND, rows_behind
from lightning_hooks.health.rules.spikes import HISTORY, LOCAL, largest_deviation, six_sigma, spikes
from lightning_hooks.health.usage import LOSS_COUNT, has_several_optimizers, is_warming_up, losses_may_balance
from lightning_hooks.health.witness import ZERO, falls, noise_of

FIRST_STEPS: Final = 10
"""The number of first steps whose updates may be far too large."""


def _balanced_losses(evidence: Evidence) -> str | None:
    """An obstacle: of a GAN, say, the sum of the losses may stay where it is."""
    return "several optimizers train with losses that may balance" if losses_may_balance(evidence) else None


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
        least_share: the smallest rise as a share of the early loss, and of the level before the spike: ripples of a loss that
            is almost 0, or of a large one, do no harm.
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
    quotes: ClassVar[tuple[str, ...]] = (*ROWS_BEHIND, *LOSS_LINE)
    next_steps: ClassVar[tuple[str, ...]] = (
        "Look at the batch of this step: labels, missing values, and the scale of its inputs.",
        "If spikes become more frequent, lower the learning rate or clip the gradient.",
    )
    source: ClassVar[str] = (
        "OLMo-core skips steps at 6 standard deviations of the last 128; 4 times the largest deviation is ours"
    )
    consequence: ClassVar[str] = (
        "One batch can undo what many steps have taught, and spikes that become more frequent announce divergence."
    )
    false_alarm: ClassVar[str] = (
        "A rare hard batch, or the change to another kind of data, also gives a single large loss. The loss must come back "
        "within a few steps to count."
    )

    def check(self, evidence: Evidence) -> Iterable[Symptom]:
        track, early = evidence.loss(), evidence.early(*LOSS)
        if track is None or early is None or not np.isfinite(early[0]):
            return
        least = self.least_share * abs(float(early[0]))

        def limit_of(history: Array) -> float:
            level, deviation = largest_deviation(history)
            return level + max(self.times * deviation, least, self.least_share * abs(level))

        def usual(history: Array) -> float:
            return six_sigma(history, self.sigmas)

        def near(history: Array) -> float:
            # This limit is cheap and never above that of limit_of(), so that most steps need no further limit.
            return float(history[-LOCAL:].min()) + least

        values = track.values[:, 0]
        for spike in spikes(values, track.new, [near, usual, limit_of], self.settle):
            value, step = float(values[spike.at]), int(track.steps[spike.at])
            before = values[max(0, spike.at - HISTORY) : spike.at]
            text = f"the loss jumps to {value:.4g} at step {step}, and had not been above {np.nanmax(before):.4g}"
            text += rows_behind(evidence, step)
            yield Symptom(
                "", tensor="", step=int(track.steps[spike.back]), measured=value, threshold=spike.limit, text=text, since=step
            )


@dataclass(frozen=True, kw_only=True)
class LossDiverged(HealthRule):
    """The loss stays far above its start.

    A multiple of the *minimum* is no sign of divergence: losses that have nearly reached 0 exceed it at all times. One of the
    first losses may be small by luck, as that of a batch of a single sample. So the loss must also exceed what the noise of the
    first losses explains.

    Args:
        most: the multiple of the start.
        times: the multiple of the noise of the first losses, above the start.
        first: the number of first losses, the smallest of which is the start unless the first one is larger.
        last: the number of last losses that all exceed both.
        soon: this number if steps change most weights by more than all of them.
    """

    most: float = 4.0
    times: float = 3.0
    first: int = 5
    last: int = 10
    soon: int = 3
    patience: int = 1
    every_n_steps: int = 10
    severity: Severity = Severity.CRITICAL
    family: ClassVar[str] = "loss"
    obstacles: ClassVar[Obstacles] = (no_loss,)
    quotes: ClassVar[tuple[str, ...]] = LOSS_LINE
    next_steps: ClassVar[tuple[str, ...]] = (
        "Divide the learning rate by 10, and again until the loss falls, or warm it up; clip the norm of the gradient.",
        "If the samples come in a fixed order, shuffle them.",
    )
    source: ClassVar[str] = (
        "TheDeepChecker warns at 2 × the minimum, which fires on healthy trainings; 4 × the start at ten steps in a row: ours; "
        "three times its noise is no chance"
    )
    consequence: ClassVar[str] = "The model is worse than at its start, and rarely recovers by itself."
    false_alarm: ClassVar[str] = (
        "A loss whose scale changes on purpose, for example a penalty that is switched on later, also stays above its start. "
        "Accept the finding."
    )

    def check(self, evidence: Evidence) -> Iterable[Symptom]:
        values, steps, judged = _known(evidence)
        start = evidence.start("loss", "mean")
        if start is not None and judged >= len(values) and evidence.standing:
            # A loss that is not finite any more has not come back, also when the window holds no finite one.
            begin = float(start[0])
            last_known = float(values[-1]) if len(values) else math.inf
            span = f"since it was {last_known:.4g}" if len(values) else f"in the last {len(evidence.steps)} steps"
            text = f"no loss has been finite {span}, and it began at {begin:.4g}"
            yield Symptom("", tensor="", step=evidence.step, measured=last_known, threshold=self.most * begin, text=text)
            return
        # Only the first looks have too few losses, so that the others need not read the updates.
        last = self.soon if len(values) < self.last + self.first and largest_steps(evidence) > 1 else self.last
        if start is None or len(values) < last + self.first or judged >= len(values):
            return
        begin, early = float(start[0]), evidence.early_losses()
        if evidence.holds_start:
            begin, early = max(begin, float(values[: self.first].min())), values[: 2 * self.first]
        lowest, limit = float(values[-last:].min()), self.most * begin
        # Where a first step has changed most weights by more than all of them, what follows is no noise of a beginning.
        # A finding that stands was judged by these steps, which the window holds for some time only.
        is_new = evidence.holds_start or not evidence.standing
        if lowest > limit and len(early) > self.first and is_new and largest_steps(evidence) <= 1:
            limit = max(limit, begin + self.times * noise_of(early))
        if begin > 0 and lowest > limit:
            below = np.flatnonzero(values <= limit)
            since = steps[int(below[-1]) + 1 if len(below) else 0]
            text = f"the loss stays above {lowest:.4g}, and it began at {begin:.4g}"
            yield Symptom("", tensor="", step=steps[-1], measured=lowest, threshold=limit, text=text, since=since)


@dataclass(frozen=True, kw_only=True)
class LossUnbounded(HealthRule):
    """The loss falls without end below 0, or it is a cross entropy or a mean squared error with a minus sign.

    A loss below 0 from the first step on falls without end if its size and its gradient have grown to a large multiple: the
    further it falls, the steeper it is. So does one that falls in proportion to the outputs of the last layer, which grow.

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
    quotes: ClassVar[tuple[str, ...]] = LOSS_LINE
    next_steps: ClassVar[tuple[str, ...]] = (
        "Look whether the sign of the loss is right: a log-likelihood is to be maximised, so its negative is the loss.",
        "Give the loss a lower bound.",
    )
    source: ClassVar[str] = (
        "ours: no training of the healthy gallery falls three orders of magnitude below 0; one order is usual, for example of "
        "an actor whose loss is the negative of a value"
    )
    consequence: ClassVar[str] = "The training lowers a number that has no lower end, or raises the loss that it should lower."
    false_alarm: ClassVar[str] = (
        "The negative value of a critic is unbounded in reinforcement learning. Such a loss is told only if it falls three "
        "orders of magnitude below 0."
    )

    def check(self, evidence: Evidence) -> Iterable[Symptom]:
        values, steps, judged = _known(evidence)
        start = evidence.start("loss", "mean")
        if start is None or len(values) < self.last:
            return
        begin = float(start[0])
        flipped = _flipped_sign(evidence, begin, float(values[-1])) if begin < 0 else ""
        if flipped:
            first = evidence.first_step
            yield Symptom("", tensor="", step=steps[-1], measured=-begin, threshold=0.0, text=flipped, since=first)
            return
        growth = growth_below_zero(evidence) if self._is_alone(evidence, begin) else None
        if growth is not None:
            first_size, size, steeper = growth
            text = (
                f"the loss has been below 0 since the first step, its size has grown from {first_size:.4g} to {size:.4g}, and "
                f"the norm of its gradient to {steeper:.3g} times the first one: it falls the faster the further it goes"
            )
            yield Symptom("", tensor="", step=steps[-1], measured=size, threshold=first_size, text=text)
            return
        straight = grows_with_outputs(evidence) if self._is_alone(evidence, begin) else None
        if straight is not None:
            first_size, size = straight
            text = (
                f"the loss has been below 0 since the first step, and its size has grown from {first_size:.4g} to {size:.4g} "
                f"in proportion to the outputs: it has no lower end, as a loss with the wrong sign"
            )
            yield Symptom("", tensor="", step=steps[-1], measured=size, threshold=first_size, text=text)
            return
        limit, highest = self.times * max(abs(begin), 1.0), float(values[-self.last :].max())
        if highest < -limit and evidence.loss_falls(WITNESS):
            text = f"the loss has fallen to {values[-1]:.4g}, began at {begin:.4g}, and still falls"
            yield Symptom("", tensor="", step=steps[-1], measured=-highest, threshold=limit, text=text)

    def _is_alone(self, evidence: Evidence, begin: float) -> bool:
        """Whether the loss began below 0 and is that of one optimizer: the value of a critic, which an actor raises, grows."""
        return begin < 0 and not has_several_optimizers(evidence.facts)


def _flipped_sign(evidence: Evidence, begin: float, now: float) -> str:
    """How the gradient shows that a loss below 0 has a minus sign, in words; empty if it does not."""
    entropy = cross_entropy_of(evidence)
    if entropy is not None:
        return (
            f"the sign of the loss is flipped: it began at {begin:.4g}, and is a cross entropy by its gradient, which "
            f"cannot be below 0; that of {entropy.classes} equal probabilities is {entropy.chance:.4g}"
        )
    factor = factor_of_square(evidence)
    if factor < 0:
        return (
            f"the sign of the loss is flipped: by its gradient it is {factor:.3g} times a mean squared error at each step, "
            f"and went from {begin:.4g} to {now:.4g}"
        )
    return ""


@dataclass(frozen=True, kw_only=True)
class LossConstant(HealthRule):
    """The loss has not moved since the training began, or it is still that of a model that knows nothing.

    Its median has not fallen from the first to the last losses, neither by a small share nor by more than its noise, and it
    varies by less than a small share from step to step. The loss of a model that knows nothing is known for two losses. A cross
    entropy is then that of equal probabilities, or of the frequencies of the classes. A mean squared error is then that of one
    output for all samples. A contrastive loss is then that of equal scores of all samples of a batch. A loss that began higher,
    and stands there, has learned the mean of the targets and nothing else. Trainings with several losses, which may balance,
    and those whose rate still rises are left out. A plateau at the beginning is usual, so that the loss must stand for a share
    of the fit; one that outputs show, for nine tenths of it.

    Args:
        spread: the largest standard deviation as a share of the loss.
        least: the smallest relative fall that counts as learning.
        gone: the share of its level by which the first loss must lie above it to have fallen before.
        steps: the number of first steps in which nothing has moved.
        share: the share of the steps of the fit that these must be at least.
        most: the number of steps that are enough, however long the fit is.
        unknown: the number of first steps if nobody knows how long the fit is.
        count: the number of measured losses among them.
    """

    spread: float = 0.05
    least: float = 0.005
    gone: float = 1.0
    steps: int = 50
    share: float = 0.2
    most: int = 1000
    unknown: int = 100
    count: int = 32
    patience: int = 1
    every_n_steps: int = 10
    family: ClassVar[str] = "loss"
    obstacles: ClassVar[Obstacles] = (_balanced_losses, no_loss)
    needs: ClassVar[Needs] = (LOSS_COUNT,)
    quotes: ClassVar[tuple[str, ...]] = LOSS_LINE
    next_steps: ClassVar[tuple[str, ...]] = (
        "Look at some inputs with their labels: a shuffle, a sort or a sampling of one without the other parts them.",
        "Try to overfit a single batch: if the loss of it does not fall, the model or the loss is at fault, not the data.",
        "Look which layers have small updates, no gradient or constant outputs.",
    )
    source: ClassVar[str] = (
        "smdebug LossNotDecreasing (0.1 % in 10 steps) fires on every healthy training; no fall in the first fifth of the fit, "
        "and at least 50 steps: ours"
    )
    consequence: ClassVar[str] = (
        "Nothing is learned: the outputs do not depend on the inputs, or the labels do not belong to them."
    )
    false_alarm: ClassVar[str] = (
        "Some deep networks stay on a plateau for long before they learn. The finding ends by itself when the loss falls."
    )

    def check(self, evidence: Evidence) -> Iterable[Symptom]:
        values, steps, _ = _known(evidence)
        started, early = evidence.start(*LOSS), evidence.early(*LOSS)
        if started is None or early is None or len(values) < self.count:
            return
        if is_warming_up(evidence) or evidence.step - evidence.first_step < self._wait(evidence):
            return
        chance = chance_reached(evidence)
        if chance is not None:
            yield self._at_chance(chance, evidence)
        else:
            yield from self._not_moved(evidence, values, steps, float(started[0]), float(early[0]))

    def _wait(self, evidence: Evidence) -> float:
        """The number of steps in which the loss must have stood."""
        last = None if evidence.facts is None else evidence.facts.last_step
        return self.unknown if last is None else max(self.steps, min(self.share * last, self.most))

    def _at_chance(self, chance: Chance, evidence: Evidence) -> Symptom:
        recent = late_losses(evidence)
        loss, doubt = float(np.median(recent)), doubt_of(recent, chance.loss)
        where, follows, since = "at chance", chance.means, chance_since(evidence, chance.loss)
        if chance.is_near:
            where, since = "still near chance", evidence.first_step
        elif loss > chance.loss + doubt:
            where, follows = "above chance", "the model is worse than one that knows nothing"
        text = (
            f"the loss is {where}: it is {loss:.4g}, give or take {doubt:.2g}, and that of {chance.of} is {chance.loss:.4g}; "
            f"{follows}"
        )
        return Symptom("", tensor="", step=evidence.step, measured=loss, threshold=chance.loss, text=text, since=since)

    def _not_moved(self, evidence: Evidence, values: Array, steps: list[int], begin: float, early: float) -> Iterable[Symptom]:
        quarter = self.count // 4
        has_start = evidence.holds_start
        first, last = float(np.median(values[:quarter])) if has_start else early, float(np.median(values[-quarter:]))
        middle = abs(first)
        if not middle >= ZERO or last < first - self.least * middle or falls(values, len(values)):
            return
        best = min(float(np.median(values[i : i + quarter])) for i in range(quarter, len(values) - quarter + 1, 5))
        # The window may begin after a fall within the first steps, such as that of an LBFGS.
        if best < first - self.least * middle or begin > first + self.gone * middle:
            return
        spread = float(np.std(np.diff(values))) / np.sqrt(2)
        # A loss that has risen by more than its noise has moved.
        if spread < self.spread * middle and last <= first + max(self.spread * middle, 3 * spread):
            text = f"the loss was {first:.5g} at the beginning and is {last:.5g} in the last {quarter} steps"
            measured, since = max(0.0, 1 - best / first), evidence.first_step
            yield Symptom("", tensor="", step=steps[-1], measured=measured, threshold=self.least, text=text, since=since)


def largest_steps(evidence: Evidence) -> float:
    """The largest share of itself by which the first steps change the median weight; 0 if it is not measured."""
    key = "update", "ratio"
    track, roles = evidence.track(*key) if key in evidence.needs else None, roles_of(evidence)
    if track is None or roles is None or not evidence.holds_start:
        return 0.0
    shares = np.where(roles.are_weights(track.names), track.values[:FIRST_STEPS], np.nan)
    middle = medians(np.where(shares > 0, shares, np.nan))
    return float(np.nanmax(middle)) if np.isfinite(middle).any() else 0.0


RULES: Final[tuple[HealthRule, ...]] = (
    LossSpike(),
    LossDiverged(),
    LossUnbounded(),
    LossConstant(),
)
"""The rules on the loss, with their defaults."""
