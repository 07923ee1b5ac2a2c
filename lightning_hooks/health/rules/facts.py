"""Rules on the learning rate, the weight decay and the loss scale of a step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from lightning_hooks.health.evidence import Evidence
from lightning_hooks.health.roles import Array, percent
from lightning_hooks.health.rule import HealthRule, Symptom
from lightning_hooks.health.rules.base import Needs, Obstacles, no_facts, no_optimizer
from lightning_hooks.health.track import Track
from lightning_hooks.health.usage import has_scaler
from lightning_hooks.records.facts import GroupFacts, StepFacts

_DECOUPLED: Final = ("SGD", "AdamW", "Lion", "Adafactor", "Muon", "LAMB", "NAdamW", "StableAdamW")
"""Optimizers in which lr · weight_decay is the share of the weight that a step takes away."""
_NORMALISING: Final = ("Adam", "Adamax", "NAdam", "RAdam", "RMSprop", "Adagrad", "Adadelta")
"""Optimizers that add weight_decay · weight to the gradient and divide the sum by its usual size."""
_ROUNDING: Final = 1e-9
"""The relative rounding error of rate times decay, so that a product which equals the threshold in decimals reaches it."""


@dataclass(frozen=True, kw_only=True)
class LearningRateZero(HealthRule):
    """The learning rate of a parameter group is 0 long before the training ends.

    Args:
        budget: the share of the steps of the fit after which a rate of 0 is the end of a schedule.
        least: of a run whose end is unknown, the number of steps for which the rate must have been 0.
    """

    budget: float = 0.75
    least: int = 10
    patience: int = 2
    warmup: int = 2
    every_n_steps: int = 5
    family: ClassVar[str] = "facts"
    obstacles: ClassVar[Obstacles] = (no_optimizer,)
    next_steps: ClassVar[tuple[str, ...]] = (
        "Look at the number of steps that the schedule was given, and at how often it is stepped (interval step or epoch).",
        "If the group is frozen on purpose, call `requires_grad_(False)` on its parameters.",
    )
    source: ClassVar[str] = (
        "ours: not in the first two steps, since a warm-up may begin at 0; nor if it is 0 in the last quarter of the fit only, "
        "since a schedule may end before the fit does"
    )
    consequence: ClassVar[str] = (
        "The parameters of the group do not change for the rest of the time, although every step costs as much as before."
    )
    false_alarm: ClassVar[str] = (
        "A group may have a rate of 0 on purpose to keep it fixed. Call `requires_grad_(False)` on its parameters, and the "
        "finding ends."
    )

    def check(self, evidence: Evidence) -> Iterable[Symptom]:
        for step in evidence.new_steps.tolist():
            facts = evidence.facts_at(step)
            if facts is None:
                continue
            for number, index, group in _zero_groups(facts):
                several = len(facts.optimizers[number].groups) > 1 or len(facts.optimizers) > 1
                which = f"group {index} of optimizer {number}" if several else "the optimizer"
                text = f"the learning rate of {which} is 0 ({len(group.params)} parameters, first {group.params[0]})"
                row = group.params[0] if several else ""
                since = self._too_early_since(evidence, facts, step, row)
                if since is not None:
                    yield Symptom(row, tensor="", step=step, measured=0.0, threshold=0.0, text=text, since=since)

    def _too_early_since(self, evidence: Evidence, facts: StepFacts, step: int, row: str) -> int | None:
        """The step since which a rate of 0 is no end of a schedule; None if it may be one."""
        if facts.last_step is not None:
            return step if step < self.budget * facts.last_step else None
        # The last step of the run is unknown, so a rate of 0 may end its schedule.
        # Report a rate that has been 0 since the first step, or for so long that the training goes on without a rate.
        begin = _zero_since(evidence, step, row)
        if row in evidence.standing or begin == evidence.first_step:
            return step
        lasted = step - begin
        is_long = begin == evidence.steps[0] or lasted >= (1 - self.budget) * (step - evidence.first_step)
        return begin if lasted >= self.least and is_long else None


def _zero_since(evidence: Evidence, step: int, row: str) -> int:
    """The first of the steps up to this one, as far as the window holds them, at which the rate was 0 throughout."""
    begin = step
    for each in reversed(evidence.steps[evidence.steps < step].tolist()):
        facts = evidence.facts_at(each)
        if facts is not None and not _is_zero(facts, row):
            break
        begin = each
    return begin


def _is_zero(facts: StepFacts, row: str) -> bool:
    return any(not row or row == group.params[0] for _, _, group in _zero_groups(facts))


def _zero_groups(facts: StepFacts) -> list[tuple[int, int, GroupFacts]]:
    """The groups with a rate of 0 and a parameter that is not frozen, each with the numbers of its optimizer and itself."""
    frozen: set[str] | None = None
    found = []
    for number, optimizer in enumerate(facts.optimizers):
        for index, group in enumerate(optimizer.groups):
            if group.lr == 0 and group.params:
                frozen = set(facts.frozen) if frozen is None else frozen
                if not frozen.issuperset(group.params):
                    found.append((number, index, group))
    return found


@dataclass(frozen=True, kw_only=True)
class WeightDecayTooLarge(HealthRule):
    """Weight decay takes a large share of the weights away at each step, or outweighs the gradient that it is added to.

    Args:
        most: the product of learning rate and weight decay from which on it is too large.
        most_of_gradient: the multiple of the gradient from which on a decay that is added to it is too large. At a minimum of
            the loss with its decay both are equal.
    """

    most: float = 0.01
    most_of_gradient: float = 10.0
    patience: int = 10
    every_n_steps: int = 20
    family: ClassVar[str] = "facts"
    obstacles: ClassVar[Obstacles] = (no_optimizer,)
    next_steps: ClassVar[tuple[str, ...]] = (
        "Lower weight_decay, or the rate if that is usual: AdamW and SGD take lr · weight_decay of the weights in each step.",
    )
    needs: ClassVar[Needs] = (("param", "norm"), ("grad", "norm"))
    source: ClassVar[str] = (
        "ours: 1 % a step halves a weight in 69 steps, healthy trainings have 0.1 % at most; of a decay of ten times the "
        "gradient, Adam's step is nine tenths decay"
    )
    consequence: ClassVar[str] = (
        "Weights shrink faster than gradients rebuild them, so that the model forgets what it has learned."
    )
    false_alarm: ClassVar[str] = (
        "A strong decay may be tuned for a short fit. Compare the norm of the weights over time before you accept the finding."
    )

    def can_run(self, evidence: Evidence) -> str | None:
        # The rates alone say how much a decoupled decay takes away.
        return no_optimizer(evidence)

    def check(self, evidence: Evidence) -> Iterable[Symptom]:
        yield from self._coupled(evidence)
        for step in evidence.new_steps.tolist():
            facts = evidence.facts_at(step)
            for optimizer in () if facts is None else facts.optimizers:
                for group in optimizer.groups if optimizer.type in _DECOUPLED else ():
                    share = (group.lr or 0.0) * (group.weight_decay or 0.0)
                    if share >= self.most * (1 - _ROUNDING) and group.params:
                        text = (
                            f"lr {group.lr:.3g} · weight_decay {group.weight_decay:.3g} takes {percent(share)} of the weights"
                        )
                        yield Symptom(
                            group.params[0],
                            tensor="",
                            step=step,
                            measured=share,
                            threshold=self.most,
                            text=f"{text} away at each step",
                        )

    def _coupled(self, evidence: Evidence) -> Iterator[Symptom]:
        """The groups of the last step whose decay is far larger than the gradient that it is added to."""
        optimizers = evidence.facts.optimizers if evidence.facts is not None else ()
        adding = [(each.type, group) for each in optimizers if each.type in _NORMALISING for group in each.groups]
        for kind, group in adding:
            weights, gradients = (_new_norms_of(evidence, evidence.track(*need), group.params) for need in self.needs)
            if not group.weight_decay or not group.lr or not group.params or weights is None or gradients is None:
                continue
            with np.errstate(invalid="ignore", divide="ignore"):
                # The gradient of what has been learned is small beside any decay, so that the early one counts too.
                largest = np.maximum(gradients, _early_norm_of(evidence, group.params))
                times = np.where(gradients > 0, group.weight_decay * weights / largest, 0.0)
            for step, measured in zip(evidence.new_steps.tolist(), times.tolist(), strict=True):
                if measured < self.most_of_gradient:
                    continue
                text = f"{kind} adds weight_decay {group.weight_decay:.3g} of the weights to their gradient"
                yield Symptom(
                    group.params[0],
                    tensor="",
                    step=step,
                    measured=measured,
                    threshold=self.most_of_gradient,
                    text=f"{text}, {measured:.3g} times as much as the gradient itself",
                )


def _new_norms_of(evidence: Evidence, track: Track | None, names: tuple[str, ...]) -> Array | None:
    """The norm of all these parameters together at each of `new_steps`, 0 where none is measured; None without a track."""
    if track is None:
        return None
    norms: Array = np.sqrt(np.nansum(np.square(evidence.new_values(track)[:, np.isin(track.names, names)]), axis=1))
    return norms


def _early_norm_of(evidence: Evidence, names: tuple[str, ...]) -> float:
    """The norm of the gradients of all these parameters together at the start, or in early steps if it was larger then."""
    track = evidence.track("grad", "norm")
    levels = [evidence.start("grad", "norm"), evidence.early("grad", "norm")]
    if track is None:
        return 0.0
    held = np.isin(track.names, names)
    return max((float(np.sqrt(np.nansum(np.square(each[held])))) for each in levels if each is not None), default=0.0)


@dataclass(frozen=True, kw_only=True)
class ScaleCollapse(HealthRule):
    """The loss scale falls although the training has run with a far larger one, or falls below 1.

    Args:
        share: the share of the largest scale at which a step was taken.
        window: the number of last steps of which this is the largest scale.
    """

    share: float = 0.07
    window: int = 64
    patience: int = 1
    every_n_steps: int = 5
    family: ClassVar[str] = "facts"
    next_steps: ClassVar[tuple[str, ...]] = (
        "Look at the first gradient that is not finite at a step that was skipped.",
        "Train in bfloat16, which needs no loss scale.",
    )
    source: ClassVar[str] = (
        "ours: four halvings after a good step are no search for the scale; below 1 a scale only loses digits"
    )
    consequence: ClassVar[str] = (
        "A small loss scale lets small gradients become 0 in float16, and each halving means a step that was skipped."
    )
    false_alarm: ClassVar[str] = (
        "A training that recovers its scale soon ends the finding by itself. At the start of a fit, the search for the scale "
        "is not told."
    )

    def can_run(self, evidence: Evidence) -> str | None:
        if evidence.facts is None:
            return no_facts(evidence)
        return None if has_scaler(evidence.facts) else "there is no loss scaler"

    def check(self, evidence: Evidence) -> Iterable[Symptom]:
        known = [(step, _scale(evidence.facts_at(step))) for step in evidence.steps.tolist()]
        first = int(evidence.new_steps[0]) if len(evidence.new_steps) else evidence.step + 1
        for i, (step, scale) in enumerate(known):
            if step < first or scale is None:
                continue
            if scale < 1.0:
                yield Symptom(
                    "", tensor="", step=step, measured=scale, threshold=1.0, text=f"the loss scale has fallen to {scale:.3g}"
                )
                continue
            before = [each for _, each in known[max(0, i - self.window) : i + 1] if each is not None]
            # The loss scaler lowers the scale after a step that it skips. So a step was taken if the next scale is not smaller.
            good = max((one for one, two in zip(before, before[1:], strict=False) if two >= one), default=0.0)
            if scale < self.share * good:
                text = f"the loss scale has fallen to {scale:.3g}, after steps with {good:.3g}"
                yield Symptom("", tensor="", step=step, measured=scale, threshold=self.share * good, text=text)


def _scale(facts: StepFacts | None) -> float | None:
    return facts.loss_scale if facts is not None else None


RULES: Final[tuple[HealthRule, ...]] = (
    LearningRateZero(),
    WeightDecayTooLarge(),
    ScaleCollapse(),
)
"""The rules on the settings of a step, with their defaults."""
