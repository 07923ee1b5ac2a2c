"""Rules on the change that the optimizer makes: too large, too small, weights that grow or shrink, gradients always clipped."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from lightning_hooks.comparing.exact import columns_of
from lightning_hooks.health.evidence import Evidence
from lightning_hooks.health.roles import (
    Array,
    Mask,
    Roles,
    known_median,
    medians,
    percent,
    roles_of,
    starts,
    steps_lost,
)
from lightning_hooks.health.rule import HealthRule, Kind, Severity, Symptom, symptoms_where
from lightning_hooks.health.rules.base import Needs, Obstacles, no_loss, no_structure
from lightning_hooks.health.track import Track
from lightning_hooks.health.usage import groups_of

_RATIO: Final = (("update", "ratio"), ("param", "rms"))
_MOMENTUM: Final = 25.0
"""The multiple of its decay that a step with a momentum of 0.95 takes, with some room."""
_HALF: Final = 0.5
"""The share below which most weights have fallen with one that has fallen far more."""
_ZERO_START: Final = 1e-3
"""A weight counts as started at zero if its root mean square began below this share of the median weight's."""


@dataclass(frozen=True, kw_only=True)
class UpdateTooLarge(HealthRule):
    """Each step changes a weight by a large share of it, and the loss neither falls nor has kept half of what it gained.

    An LSTM under SGD with a large rate makes such steps and learns, with stretches in which its loss does not fall.

    Args:
        most: the largest ratio of the norms of update and weight that is usual.
    """

    most: float = 0.1
    patience: int = 10
    warmup: int = 20
    every_n_steps: int = 20
    family: ClassVar[str] = "updates"
    kind: ClassVar[Kind] = "pattern"
    obstacles: ClassVar[Obstacles] = (no_loss, no_structure)
    needs: ClassVar[Needs] = _RATIO
    next_steps: ClassVar[tuple[str, ...]] = (
        "Divide the learning rate of the layer by 10, or warm it up over some hundred steps.",
        "Look at the update ratio over time: a ratio that is large only at the start needs a warm-up, not a lower rate.",
    )
    source: ClassVar[str] = (
        "0.1 ends TheDeepChecker's band; at once it fires on healthy trainings, for 10 steps while the loss does not fall it "
        "did not"
    )
    consequence: ClassVar[str] = (
        "A step that changes a weight by a tenth of it or more destroys what the last steps have built."
    )
    false_alarm: ClassVar[str] = (
        "Some recurrent networks make such steps and learn. The rule needs a loss that does not fall and has lost half of its "
        "gain."
    )

    def check(self, evidence: Evidence) -> Iterable[Symptom]:
        track, roles = evidence.track("update", "ratio"), roles_of(evidence)
        if track is None or roles is None or evidence.loss_falls() is not False:
            return ()
        holds = (track.values > self.most) & started_above_zero(evidence, roles, track.names)
        holds &= steps_lost(evidence)[:, None]
        return symptoms_where(track, holds, self.most, _of_weight, before=percent)


@dataclass(frozen=True, kw_only=True)
class UpdateTooSmall(HealthRule):
    """Steps hardly change a weight from the start on, and no other weight much more; or far less than another weight.

    A weight does not learn either if its steps are nothing but weight decay: then they take one share of all weights.

    Args:
        least: the ratio of the norms of update and weight from which on a loss that does not fall has another reason.
        most_of_others: the multiple of `least` that no weight exceeds if all of them move too little.
        least_alone: a ratio below this is too small also if another weight changes far more.
        least_share: the share of the largest ratio below which a weight changes far less than another one.
        equal: the relative difference up to which most weights lose the same share.
    """

    least: float = 1e-4
    most_of_others: float = 10.0
    least_alone: float = 1e-6
    least_share: float = 1e-3
    equal: float = 0.1
    patience: int = 10
    warmup: int = 20
    every_n_steps: int = 20
    family: ClassVar[str] = "updates"
    kind: ClassVar[Kind] = "pattern"
    obstacles: ClassVar[Obstacles] = (no_loss, no_structure)
    needs: ClassVar[Needs] = _RATIO
    next_steps: ClassVar[tuple[str, ...]] = (
        "Look at the learning rate of the parameter group, and at what the schedule does with it.",
        "Compare `grad` with `final_grad`: clipping may leave almost nothing.",
        "With Adam, compare the gradient with eps.",
    )
    source: ClassVar[str] = (
        "cs231n and TheDeepChecker warn below 1e-4; here it must be so from the start on, and a model that was trained before "
        "need not learn"
    )
    consequence: ClassVar[str] = "The weight stays practically where it began, so that the training time is lost for it."
    false_alarm: ClassVar[str] = (
        "Fine-tuning with a small rate has such updates on purpose. The finding is a note until the loss shows harm."
    )

    def check(self, evidence: Evidence) -> Iterable[Symptom]:
        track, roles = evidence.track("update", "ratio"), roles_of(evidence)
        early = evidence.early("update", "ratio")
        if track is None or roles is None or early is None:
            return
        weights = started_above_zero(evidence, roles, track.names)
        moving = np.where(weights & (track.values > 0), track.values, np.nan)
        # Judge only weights that moved little from the start:
        # one that slowed down later was annealed on purpose or has converged.
        always = ~(early >= self.least)
        with np.errstate(invalid="ignore"):
            largest = np.fmax.reduce(moving, axis=1, initial=-np.inf)[:, None]
            # If another weight moves as usual, a small update may be meant:
            # a pretrained backbone often has a small learning rate.
            small = (moving < self.least) & always & (largest < self.most_of_others * self.least)
            alone = (moving < self.least_alone) & (moving < self.least_share * largest) & ~(early >= self.least_alone)
        yield from symptoms_where(track, small, self.least, _of_weight, small, before=percent)
        decays = weights & small_decays(evidence, track, early, weights, self.equal)
        yield from symptoms_where(track, decays & ~small, self.least, _of_decay, decays, before=percent)
        yield from symptoms_where(
            track, alone, np.minimum(self.least_alone, self.least_share * largest), _alone, before=percent
        )


def _of_weight(ratio: float) -> str:
    return f"one update is {percent(ratio)} of the weight"


def _of_decay(ratio: float) -> str:
    share = percent(ratio)
    return f"one update is {share} of the weight, as of most weights, and nothing but weight decay takes one share of all"


def small_decays(evidence: Evidence, track: Track, early: Array, weights: Mask, equal: float) -> Mask:
    """At which steps and weights the step is nothing but weight decay, bool [window, rows].

    The decay is the rate times `weight_decay`, and with momentum some times that. It must take the same share of three quarters
    of the weights that it acts on, three at least, and no other such weight may change by three times that share.

    Args:
        evidence: of the run.
        track: of the ratio of the norms of update and weight.
        early: the level of the ratio in the first steps.
        weights: which rows are judged.
        equal: the relative difference up to which shares are the same.
    """
    held = np.zeros(track.values.shape, dtype=np.bool_)
    if not len(track.steps) or not _are_equal(early, weights & (_decay_of(evidence, int(track.steps[-1]), track) > 0), equal):
        return held
    for at, step in enumerate(track.steps.tolist()):
        decay = _decay_of(evidence, step, track)
        acted = weights & (decay > 0) & np.isfinite(track.values[at])
        if not _are_equal(track.values[at], acted, equal):
            continue
        share = float(np.median(track.values[at, acted]))
        is_decay = (share > decay / 2) & (share < _MOMENTUM * decay)
        with np.errstate(invalid="ignore"):
            held[at] = acted & is_decay & (np.abs(track.values[at] / share - 1) <= equal)
    return held


def _are_equal(shares: Array, acted: Mask, equal: float) -> bool:
    """Whether most of some shares are the same, and no other one is much larger."""
    known = shares[acted & np.isfinite(shares)]
    if len(known) < 3 or not np.median(known) > 0:
        return False
    times = known / np.median(known)
    return bool((np.abs(times - 1) <= equal).mean() >= 0.75 and times.max() < 3)


def _decay_of(evidence: Evidence, step: int, track: Track) -> Array:
    """The share of a parameter that weight decay takes without momentum, float64 [rows]; 0 where none is known."""
    groups = groups_of(evidence.facts_at(step))
    shares = {name: (group.lr or 0.0) * (group.weight_decay or 0.0) for group in groups for name in group.params}
    return np.array([shares.get(name, 0.0) for name in track.names])


def _alone(ratio: float) -> str:
    return f"one update is {percent(ratio)} of the weight, less than a thousandth of that of another weight"


@dataclass(frozen=True, kw_only=True)
class WeightGrowth(HealthRule):
    """A weight has grown to a multiple of its start while the other weights have not.

    Args:
        most: the largest usual growth over the start. A weight that started smaller than the median weight is compared with
            that, because heads and adapters often start at zero.
        most_of_median: the largest usual multiple of the median weight's growth.
    """

    most: float = 15.0
    most_of_median: float = 4.0
    patience: int = 10
    warmup: int = 25
    every_n_steps: int = 20
    family: ClassVar[str] = "updates"
    kind: ClassVar[Kind] = "pattern"
    obstacles: ClassVar[Obstacles] = (no_structure,)
    needs: ClassVar[Needs] = (("param", "rms"),)
    next_steps: ClassVar[tuple[str, ...]] = (
        "Look at the learning rate of the layer, and at `update` over time.",
        "Add weight decay.",
        "Put a norm behind the layer.",
    )
    source: ClassVar[str] = (
        "tried: the head of a healthy LSTM under SGD with a rate of 20 grows 9 times, faulty weights 40 times and more"
    )
    consequence: ClassVar[str] = (
        "A weight that outgrows the rest dominates the output, saturates what comes after it, and often ends in numbers that "
        "are not finite."
    )
    false_alarm: ClassVar[str] = (
        "Heads under SGD with a large rate grow several times in healthy training. The finding is a note until the loss shows "
        "harm."
    )

    def check(self, evidence: Evidence) -> Iterable[Symptom]:
        track, start, roles = evidence.track("param", "rms"), evidence.start("param", "rms"), roles_of(evidence)
        if track is None or start is None or roles is None or not track.new.stop > track.new.start:
            return ()
        weights = roles.are_weights(track.names)
        base = np.maximum(start, known_median(start[weights]))
        with np.errstate(invalid="ignore", divide="ignore"):
            growth = np.where(weights, track.values / base, np.nan)
        limit = np.maximum(self.most, self.most_of_median * np.maximum(medians(growth), 1.0))
        grown = track._replace(stat="growth", values=growth)
        return symptoms_where(grown, growth > limit[:, None], limit[:, None], _grown)


def _grown(times: float) -> str:
    return f"the weight is {times:.3g} times as large as at its start, or as the median weight at its start"


@dataclass(frozen=True, kw_only=True)
class WeightShrinkage(HealthRule):
    """A weight has fallen to a small share of what it was some steps before, and most weights to half of it.

    Weights may fall so in healthy training, as those of branches that are not needed, so this is information. With
    `MovesBetweenSteps` it says that code shrinks weights.

    Args:
        share: the smallest usual share.
        steps: the number of steps within which it falls.
    """

    severity: Severity = Severity.INFO
    share: float = 0.1
    steps: int = 100
    patience: int = 5
    every_n_steps: int = 20
    family: ClassVar[str] = "updates"
    kind: ClassVar[Kind] = "pattern"
    obstacles: ClassVar[Obstacles] = (no_structure,)
    needs: ClassVar[Needs] = (("param", "rms"),)
    next_steps: ClassVar[tuple[str, ...]] = (
        "Look at weight_decay: `AdamW` and `SGD` take lr · weight_decay of the weights in each step.",
        "Search for code that multiplies weights: `mul_`, a norm that is imposed, an average that began at 0.",
    )
    source: ClassVar[str] = "ours: a decay would have to take 2.3 % of the weight in each of 100 steps; healthy ones take 0.1 %"
    consequence: ClassVar[str] = (
        "A weight that falls to a tenth in few steps loses what it has learned, and its layer passes hardly any signal."
    )
    false_alarm: ClassVar[str] = (
        "Branches that are not needed may shrink in healthy training, so that the finding is information."
    )

    def check(self, evidence: Evidence) -> Iterable[Symptom]:
        track, roles = evidence.track("param", "rms"), roles_of(evidence)
        if track is None or roles is None or not track.new.stop > track.new.start:
            return ()
        values = np.where(started_above_zero(evidence, roles, track.names), track.values, np.nan)
        shares = np.full_like(values, np.nan)
        with np.errstate(invalid="ignore", divide="ignore"):
            if not (values[track.new] < self.share * np.fmax.reduce(values, axis=0)).any():
                return ()
            for i in range(track.new.start, track.new.stop):
                first = int(np.searchsorted(track.steps, track.steps[i] - self.steps))
                shares[i] = values[i] / np.fmax.reduce(values[first : i + 1], axis=0)
            holds = (shares < self.share) & (medians(shares) < _HALF)[:, None]
        text = f"within {self.steps} steps the weight has fallen to "
        return symptoms_where(
            track._replace(stat="share", values=shares), holds, self.share, lambda share: f"{text}{percent(share)} of its size"
        )


@dataclass(frozen=True, kw_only=True)
class ClippingAlways(HealthRule):
    """Clipping acts at almost every step. That alone is no fault; it is one if it leaves so little that nothing is learned.

    Args:
        share: the share of steps at which clipping acts.
        window: the number of steps of which this is a share.
        least: the smallest number of measured steps among them.
    """

    share: float = 0.9
    window: int = 50
    least: int = 5
    severity: Severity = Severity.INFO
    patience: int = 1
    family: ClassVar[str] = "updates"
    kind: ClassVar[Kind] = "pattern"
    needs: ClassVar[Needs] = (("grad", "norm"), ("final_grad", "norm"))
    next_steps: ClassVar[tuple[str, ...]] = (
        "Compare `watch/run/grad_norm` with gradient_clip_val: a limit far below the usual norm replaces the learning rate.",
    )
    source: ClassVar[str] = "a limit that acts at more than 90 % of the steps is no guard against outliers any more"
    consequence: ClassVar[str] = (
        "The limit replaces the learning rate: each step has the same length, however large the gradient is."
    )
    false_alarm: ClassVar[str] = (
        "Many language models are trained with clipping at nearly every step. The finding is information, and becomes a cause "
        "only if the model hardly learns."
    )

    def can_run(self, evidence: Evidence) -> str | None:
        reason = super().can_run(evidence)
        grad, final = evidence.track("grad", "norm"), evidence.track("final_grad", "norm")
        if reason is None and grad is not None and final is not None and not set(grad.names) & set(final.names):
            return "no parameter has both `grad` and `final_grad`"
        return reason

    def check(self, evidence: Evidence) -> Iterable[Symptom]:
        grad, final = evidence.track("grad", "norm"), evidence.track("final_grad", "norm")
        if grad is None or final is None or not len(evidence.new_steps):
            return
        kept = _kept(grad, final)
        is_known = np.isfinite(kept) & (grad.steps > evidence.step - self.window)
        known, steps = kept[is_known], grad.steps[is_known]
        # `final_grad` is usually measured at every tenth step, so a window of 50 steps holds five numbers and most steps none.
        # Also speak at a step without one, such as the last of a run: a look without a symptom would end the finding.
        if len(known) < self.least or evidence.step - evidence.first_step < self.window - 1:
            return
        share = float(np.mean(known < 0.99))
        if share >= self.share:
            left = percent(float(np.median(known)))
            text = f"clipping cut the gradient at {percent(share)} of the last {self.window} steps, to {left} of its norm"
            yield Symptom(
                "", tensor="", step=int(steps[-1]), measured=share, threshold=self.share, text=text, since=int(steps[0])
            )


def _kept(grad: Track, final: Track) -> Array:
    """The share of the norm of the whole gradient that the optimizer takes, float64 [window]; NaN where it is not known."""
    columns = columns_of(final.names, grad.names)
    before, after = grad.values[:, columns >= 0], final.values[:, columns[columns >= 0]]
    both = np.isfinite(before) & np.isfinite(after)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        kept: Array = np.sqrt(
            np.square(np.where(both, after, 0.0)).sum(axis=1) / np.square(np.where(both, before, 0.0)).sum(axis=1)
        )
    return kept


def started_above_zero(evidence: Evidence, roles: Roles, names: tuple[str, ...]) -> Mask:
    """Which parameters are weights that did not start at about zero, as the second matrix of LoRA does."""
    weights = roles.are_weights(names)
    start = starts(evidence, "param", "rms", names)
    above: Mask = weights & (start > _ZERO_START * known_median(start[weights]))
    return above


RULES: Final[tuple[HealthRule, ...]] = (UpdateTooLarge(), UpdateTooSmall(), WeightGrowth(), WeightShrinkage(), ClippingAlways())
"""The rules on updates, with their default thresholds."""
