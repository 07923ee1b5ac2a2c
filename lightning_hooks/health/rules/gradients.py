"""Rules on gradients: spikes, gradients that explode or vanish, and gradients that add up because nobody clears them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from lightning_hooks.health.evidence import Evidence
from lightning_hooks.health.roles import Mask, roles_of, steps_lost
from lightning_hooks.health.rule import HealthRule, Kind, Severity, Symptom, missing, symptoms_where
from lightning_hooks.health.rules.base import Obstacles
from lightning_hooks.health.rules.rows_behind import ROWS_BEHIND, with_rows
from lightning_hooks.health.rules.spikes import SHORT_HISTORY, Array, caution, six_sigma, spikes
from lightning_hooks.health.track import Track

_WHOLE: Final = ("", "run/grad_norm")


def _no_weights(evidence: Evidence) -> str | None:
    """An obstacle of a rule on weights. A bias in front of a norm has no gradient by mathematics, so only weights count."""
    return "nobody knows which parameters are weights" if evidence.structure is None else None


def _are_weights(evidence: Evidence, names: tuple[str, ...], without: tuple[str, ...] = ()) -> Mask:
    """Whether each row is a matrix or more that is not frozen, and not of a module with one of the roles `without`."""
    roles, facts = roles_of(evidence), evidence.facts
    if roles is None:
        return np.zeros(len(names), dtype=np.bool_)
    frozen = set(facts.frozen) if facts is not None else set()
    is_left_out = roles.have_role(roles.owners(names), without)
    return roles.are_weights(names) & ~is_left_out & np.array([name not in frozen for name in names], dtype=np.bool_)


@dataclass(frozen=True, kw_only=True)
class GradientSpike(HealthRule):
    """The gradient of a weight jumps at a single step far above all that came before, and comes back within a few steps.

    Args:
        sigmas: the smallest distance from the mean of the last 128 steps, in standard deviations of the logarithm.
        times: the smallest multiple of the largest of these steps; 4 times as much with fewer than 64 of them.
        settle: the number of steps within which the gradient must come back by half.
    """

    sigmas: float = 6.0
    times: float = 5.0
    settle: int = 2
    patience: int = 1
    family: ClassVar[str] = "gradients"
    kind: ClassVar[Kind] = "pattern"
    obstacles: ClassVar[Obstacles] = (_no_weights,)
    quotes: ClassVar[tuple[str, ...]] = ROWS_BEHIND
    needs: ClassVar[tuple[tuple[str, str], ...]] = (("grad", "norm"),)
    next_steps: ClassVar[tuple[str, ...]] = (
        "Look at the batch of this step: labels, missing values, and the scale of its inputs.",
        "Clip the norm of the gradient, so that one batch cannot undo what others have taught.",
    )
    source: ClassVar[str] = (
        "OLMo-core: 6 standard deviations of the last 128, here of the logarithm and per weight; alone it fires on healthy "
        "trainings, with 5 times the largest it did not"
    )
    consequence: ClassVar[str] = "A single update can be many times larger than all others and undo what was learned."
    false_alarm: ClassVar[str] = (
        "Gradients with heavy tails have such spikes without harm. The finding is a note until the loss shows harm."
    )

    def check(self, evidence: Evidence) -> Iterable[Symptom]:
        track, early = evidence.track("grad", "norm"), evidence.early("grad", "norm")
        if track is None or early is None or not len(track.steps):
            return
        track = evidence.of_rows(track)
        found: dict[int, list[Symptom]] = {}  # by the step of the spike
        for column in self._candidates(track, early, _are_weights(evidence, track.names)):
            values = track.values[:, column]
            for spike in spikes(values, track.new, [self._limit_of], self.settle, self.times, SHORT_HISTORY):
                # Ignore a spike up to the early level:
                # once a model has learned its data, a hard sample has a gradient as at the start.
                if values[spike.at] > early[column]:
                    symptom = _spike_symptom(track, column, float(values[spike.at]), spike.at, spike.back, spike.limit)
                    found.setdefault(int(track.steps[spike.at]), []).append(symptom)
        for step, symptoms in found.items():
            yield from with_rows(symptoms, max(symptoms, key=lambda symptom: symptom.excess), evidence, step)

    def _candidates(self, track: Track, early: Array, weights: Mask) -> list[int]:
        """The columns in which some recent number exceeds a multiple of the one before it, which is cheap to know."""
        recent = track.values[max(track.new.start - self.settle - 1, 0) : track.new.stop]
        with np.errstate(invalid="ignore"):
            jumps = (recent[1:] > early) & ~(recent[1:] <= self.times * recent[:-1])
        return [int(column) for column in np.flatnonzero(jumps.any(axis=0) & weights)]

    def _limit_of(self, history: Array) -> float:
        positive = history[history > 0]
        if len(positive) < len(history) / 2:
            return np.inf
        largest = self.times * caution(history) * float(positive.max())
        return max(float(np.exp(six_sigma(np.log(positive), self.sigmas))), largest)


def _spike_symptom(track: Track, column: int, value: float, at: int, back: int, limit: float) -> Symptom:
    step = int(track.steps[at])
    text = f"the norm of the gradient jumps to {value:.3g} at step {step}, where {limit:.3g} would have been unusual"
    return Symptom(
        track.names[column], tensor="grad", step=int(track.steps[back]), measured=value, threshold=limit, text=text, since=step
    )


@dataclass(frozen=True, kw_only=True)
class ExplodingGradient(HealthRule):
    """The gradient of a weight, and the whole gradient, are a large multiple of their early level, and the loss is lost.

    The loss must not fall, and must have given back half of what it had gained: a network that leaves the plateau on which it
    started has gradients a thousand times as large, and learns.

    Args:
        times: the smallest multiple of the median of steps 5 to 24.
    """

    severity: Severity = Severity.CRITICAL
    times: float = 50.0
    patience: int = 10
    every_n_steps: int = 20
    family: ClassVar[str] = "gradients"
    kind: ClassVar[Kind] = "pattern"
    obstacles: ClassVar[Obstacles] = (_no_weights,)
    needs: ClassVar[tuple[tuple[str, str], ...]] = (("grad", "norm"), _WHOLE)
    next_steps: ClassVar[tuple[str, ...]] = (
        "Clip the norm of the gradient.",
        "Divide the learning rate by 10, or warm it up over some hundred steps.",
    )
    source: ClassVar[str] = "AutoTrainer's ratio of 70 fires on healthy trainings; 50 times a weight's own early level does not"
    consequence: ClassVar[str] = "Updates become so large that the weights leave the region in which the model works."
    false_alarm: ClassVar[str] = (
        "A network that leaves a plateau has gradients a thousand times as large, and learns. The rule needs a loss that is "
        "lost as well."
    )

    def check(self, evidence: Evidence) -> Iterable[Symptom]:
        track, early = evidence.track("grad", "norm"), evidence.early("grad", "norm")
        whole, early_whole = evidence.track(*_WHOLE), evidence.early(*_WHOLE)
        if track is None or early is None or whole is None or early_whole is None:
            return ()
        if evidence.loss() is not None and evidence.loss_falls() is not False:
            return ()
        weights = _are_weights(evidence, track.names)
        limit = np.where(weights & (early > 0), self.times * early, np.inf)
        with np.errstate(invalid="ignore"):
            holds = (
                (track.values > limit)
                & (whole.values > self.times * early_whole)
                & (early_whole > 0)
                & steps_lost(evidence)[:, None]
            )
            times = track.values / np.where(early > 0, early, np.nan)
        grown = track._replace(stat="growth", values=times)
        return symptoms_where(
            grown, holds, self.times, lambda value: f"the gradient is {value:.3g} times as large as in early steps"
        )


@dataclass(frozen=True, kw_only=True)
class VanishingGradient(HealthRule):
    """The gradient of a weight is a tiny share of that of another weight, for long, and the loss does not fall.

    A gradient of exactly 0 is no gradient, which another rule tells. Not judged: embeddings, most of whose lines get no
    gradient, weights whose gradient began at 0 (adapters, branches that start at 0), and gradients that have grown since.

    Args:
        least: the smallest share of the largest weight's root mean square that is usual.
        most_growth: a gradient that is so many times as large as at the start is growing out of a small start.
    """

    least: float = 1e-4
    most_growth: float = 10.0
    patience: int = 40
    family: ClassVar[str] = "gradients"
    kind: ClassVar[Kind] = "pattern"
    obstacles: ClassVar[Obstacles] = (_no_weights,)
    needs: ClassVar[tuple[tuple[str, str], ...]] = (("grad", "rms"),)
    next_steps: ClassVar[tuple[str, ...]] = (
        "Look at the activations between this weight and the loss: saturated ones let no gradient pass.",
        "Use residual connections and activations that do not saturate.",
        "Put a norm before each activation.",
    )
    source: ClassVar[str] = "AutoTrainer's ratio of 1e-3, and a tenth of it, because a ratio alone says little"
    consequence: ClassVar[str] = "The layers before this place hardly change, so that the model trains only its last part."
    false_alarm: ClassVar[str] = (
        "Adam divides by the size of the gradient, so that a small gradient alone does no harm. The rule needs a loss that "
        "does not fall."
    )

    def check(self, evidence: Evidence) -> Iterable[Symptom]:
        track, start = evidence.track("grad", "rms"), evidence.start("grad", "rms")
        if track is None or start is None:
            return ()
        # Report only while the loss does not fall:
        # attention queries and keys begin with gradients as small in healthy trainings.
        if evidence.loss() is not None and evidence.loss_falls() is not False:
            return ()
        weights = _are_weights(evidence, track.names)
        judged = _are_weights(evidence, track.names, without=("embedding",)) & (start > 0)
        known = np.where(weights & np.isfinite(track.values), track.values, np.nan)
        largest = np.fmax.reduce(known, axis=1, initial=-np.inf)[:, None]
        with np.errstate(invalid="ignore", divide="ignore"):
            share = np.where(largest > 0, track.values / largest, np.nan)
            holds = judged & (share < self.least) & (share > 0) & (track.values < self.most_growth * start)
        shares = track._replace(stat="share", values=share)
        return symptoms_where(
            shares,
            holds,
            self.least,
            lambda value: f"the gradient is {value:.2g} of the largest weight's (rms)",
            before="{:.2g}".format,
        )


@dataclass(frozen=True, kw_only=True)
class GradientsRepeat(HealthRule):
    """From the first step on, the gradient grows as a sum does: by about one gradient a step, as if none were ever cleared.

    If the `cosine` of `grad` is watched, gradients of successive steps must also point in the same direction. The finding lasts
    until the gradient is below half of its largest, because a sum that nobody clears stays.

    Args:
        least_rate: the smallest growth in a step, in units of the first gradient, on average since the first step and
            at each step since then: the second gradient of a training that clears them is hardly larger than the first.
        most_rate: the largest one; what grows faster explodes.
        most_change: the largest change in a single step, in the same unit: that of one batch.
        rising: the smallest share of steps at which the norm rises.
        least_cosine: the smallest median of the cosines.
        until: the number of first steps in which the sum is to grow evenly; later it need not.
    """

    severity: Severity = Severity.WARNING
    least_rate: float = 0.35
    most_rate: float = 1.5
    most_change: float = 2.0
    rising: float = 0.85
    least_cosine: float = 0.8
    until: int = 60
    patience: int = 10
    warmup: int = 12
    every_n_steps: int = 20
    family: ClassVar[str] = "gradients"
    kind: ClassVar[Kind] = "pattern"
    needs: ClassVar[tuple[tuple[str, str], ...]] = (_WHOLE, ("grad", "cosine"))
    # Comparing a gradient with the previous one takes longer than measuring both, so ask for `cosine` as long as it is read.
    needs_until: ClassVar[int | None] = 59
    next_steps: ClassVar[tuple[str, ...]] = (
        "Call `optimizer.zero_grad()` before each backward pass, or once in each accumulation.",
    )
    source: ClassVar[str] = (
        "tried: sums of gradients grow by 0.39 to 1 first gradients a step, healthy trainings as evenly by 0.26 at most"
    )
    consequence: ClassVar[str] = (
        "Each step follows the sum of all earlier gradients, so that steps grow and the training often diverges."
    )
    false_alarm: ClassVar[str] = (
        "A gradient that grows evenly for another reason, such as slowly growing logits, can look so at the start. The finding "
        "is a note until the loss shows harm."
    )

    def can_run(self, evidence: Evidence) -> str | None:
        return missing(evidence, *_WHOLE) if evidence.track(*_WHOLE) is None else None

    def check(self, evidence: Evidence) -> Iterator[Symptom]:
        track, start = evidence.track(*_WHOLE), evidence.start(*_WHOLE)
        if track is None or start is None or not start[0] > 0 or not (evidence.holds_start or evidence.standing):
            return
        norms = track.values[:, 0] / start[0]
        if evidence.holds_start:
            grown = self._grows(evidence, norms[: self.until])
            if not grown.any():
                return
            kept = _kept_after(grown, norms, self.patience)
        else:
            grown, kept = np.zeros(0, dtype=np.bool_), _stays(norms)
        for i in np.flatnonzero(np.isfinite(norms[track.new])) + track.new.start:
            if i < len(grown) and grown[i]:
                text = f"the norm of the gradient has grown evenly to {norms[i]:.3g} times the first in {i + 1} steps"
            elif kept[i]:
                text = (
                    f"the norm of the gradient grew evenly from the first step on, and is still {norms[i]:.3g} times the first"
                )
            else:
                continue
            yield Symptom(
                "",
                tensor="",
                step=int(track.steps[i]),
                measured=float(norms[i]),
                threshold=self.least_rate * min(i + 1.0 if evidence.holds_start else np.inf, self.until),
                text=text,
                since=evidence.first_step,
            )

    def _grows(self, evidence: Evidence, norms: Array) -> Mask:
        """At which of the first steps the norm has grown as that of a sum, bool [steps]."""
        changes = np.diff(norms)
        if not len(changes):
            return np.zeros(len(norms), dtype=np.bool_)
        counts = np.arange(1, len(norms) + 1)
        with np.errstate(invalid="ignore"):
            even = np.maximum.accumulate(np.abs(changes)) <= self.most_change
            rising = np.cumsum(changes > 0) / counts[:-1] >= self.rising
            rate = norms / counts
            holds: Mask = np.logical_and.accumulate((rate >= self.least_rate) & (rate <= self.most_rate))
        holds[1:] &= even & rising
        holds[: self.warmup] = False
        return holds & self._align(evidence)[: len(holds)] if holds.any() else holds

    def _align(self, evidence: Evidence) -> Mask:
        """At which steps the last gradients that were compared point in the same direction; everywhere if none were."""
        cosines = evidence.track("grad", "cosine")
        if cosines is None:
            return np.ones(len(evidence.steps), dtype=np.bool_)
        values = cosines.values[: self.until]
        measured = ~np.isnan(values).all(axis=1)
        aligned = np.ones(len(evidence.steps), dtype=np.bool_)
        compared = np.flatnonzero(measured)
        if len(compared):
            last = np.cumsum(measured) - 1
            medians = np.nanmedian(values[compared], axis=1) >= self.least_cosine
            aligned[: len(values)] = np.where(last >= 0, medians[last], True)
        return aligned


def _kept_after(grown: Mask, norms: Array, least: int) -> Mask:
    """Since when, after `least` steps of growth, the norm has not fallen to half of its largest: a sum stays, bool [steps]."""
    kept = np.zeros(len(norms), dtype=np.bool_)
    runs = np.convolve(grown, np.ones(least, dtype=np.intp))[: len(grown)] if len(grown) else grown
    first = np.flatnonzero(runs >= least)
    if len(first):
        kept[first[0] :] = np.logical_and.accumulate(_stays(norms)[first[0] :])
    return kept


def _stays(norms: Array) -> Mask:
    """At which steps the norm has not yet fallen to half of its largest, bool [steps]. Infinite norms say nothing."""
    with np.errstate(invalid="ignore"):
        finite = np.where(np.isfinite(norms), norms, np.nan)
        stays: Mask = np.logical_and.accumulate(~(finite < np.fmax.accumulate(finite) / 2))
    return stays


RULES: Final[tuple[HealthRule, ...]] = (GradientSpike(), ExplodingGradient(), VanishingGradient(), GradientsRepeat())
"""The rules on gradients."""
