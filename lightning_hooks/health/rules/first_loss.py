"""The rule on the first loss: far above that of a model that knows nothing."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Final, NamedTuple

import numpy as np

from lightning_hooks.health.evidence import LOSS, Evidence
from lightning_hooks.health.layers import last_layer
from lightning_hooks.health.loss_line import LOSS_LINE
from lightning_hooks.health.roles import roles_of, starts
from lightning_hooks.health.rule import HealthRule, Symptom
from lightning_hooks.health.rules.base import Needs, Obstacles, no_loss, no_structure


class SureStart(NamedTuple):
    """A first loss far above that of chance: the outputs are sure of something before they have learned anything.

    Args:
        loss: the first one.
        limit: the largest usual one.
        classes: the number of classes.
    """

    loss: float
    limit: float
    classes: int

    @property
    def text(self) -> str:
        """What it is, in words."""
        return (
            f"the loss began at {self.loss:.4g}, and ln({self.classes}), the loss of guesses, is {math.log(self.classes):.3g}"
        )


@dataclass(frozen=True, kw_only=True)
class InitialLoss(HealthRule):
    """A cross entropy begins far above that of chance, ln(classes), and stays there for ten updates.

    The loss is known as the mean cross entropy of the last layer by the gradient of that layer's output: its mean is 0, and its
    largest element is nearly 1 / samples, as where a model is sure of a wrong class. Sums and weighted means are not judged.

    Args:
        factor: the multiple of chance that is usual at most.
        more: the loss above chance that is usual at most, for few classes.
        updates: the number of updates for which the loss stays there.
        least_sure: the smallest product of the largest gradient and the number of samples.
    """

    factor: float = 2.0
    more: float = 1.0
    updates: int = 10
    least_sure: float = 0.5
    patience: int = 1
    every_n_steps: int = 10
    family: ClassVar[str] = "loss"
    obstacles: ClassVar[Obstacles] = (no_loss, no_structure)
    needs: ClassVar[Needs] = (
        ("output_grad", "mean"),
        ("output_grad", "rms"),
        ("output_grad", "abs_max"),
        ("output_grad", "count"),
    )
    quotes: ClassVar[tuple[str, ...]] = LOSS_LINE
    next_steps: ClassVar[tuple[str, ...]] = (
        "Make the weights of the last layer smaller at the start: its outputs are far apart before it has learnt anything.",
        "Look whether the inputs are normalised.",
        "Look whether logits are multiplied by a factor.",
    )
    source: ClassVar[str] = (
        "ln(classes) is the loss of equal probabilities; the largest of healthy trainings was 1.8 times that"
    )
    consequence: ClassVar[str] = (
        "The first steps only repair the scale of the outputs, with large gradients that can push hidden units out of their "
        "range."
    )
    false_alarm: ClassVar[str] = (
        "A model that was trained on other classes before starts sure of wrong ones. The finding ends as soon as the loss is "
        "near chance."
    )

    def check(self, evidence: Evidence) -> Iterable[Symptom]:
        loss, early, roles = evidence.loss(), evidence.early(*LOSS), roles_of(evidence)
        if loss is None or early is None or roles is None or not len(evidence.new_steps):
            return
        if evidence.step < self.updates:
            return
        start = self.start_above_chance(evidence)
        if start is None:
            return
        known = loss.values[np.isfinite(loss.values)]
        lowest = float(known.min()) if known.size == loss.values.size else -math.inf
        if lowest > start.limit and not early[0] <= start.limit:
            last = last_layer(evidence, roles)
            yield Symptom(
                last, tensor="", step=evidence.step, measured=start.loss, threshold=start.limit, text=start.text, since=0
            )

    def start_above_chance(self, evidence: Evidence) -> SureStart | None:
        """The first loss if it is a mean cross entropy far above that of chance, whatever became of it; else None."""
        roles = roles_of(evidence)
        if roles is None or evidence.first_step or any(need not in evidence.needs for need in self.needs):
            return None
        first, last = evidence.start(*LOSS), last_layer(evidence, roles)
        weight = roles.weight(last)
        classes = weight.shape[0] if weight is not None else 0
        if first is None or not len(first) or classes < 2 or not self._is_mean_entropy(evidence, last, classes):
            return None
        chance = math.log(classes)
        limit, begin = max(self.factor * chance, chance + self.more), float(first[0])
        return SureStart(begin, limit, classes) if math.inf > begin > limit else None

    def _is_mean_entropy(self, evidence: Evidence, last: str, classes: int) -> bool:
        """Whether the first gradient of the last layer's output is that of a mean cross entropy of so many classes."""
        mean, rms, largest, count = (float(starts(evidence, *need, (last,))[0]) for need in self.needs)
        # `count` is summed over all ranks. The loss of a rank is the mean over the samples of that rank only.
        share = largest * count / evidence.ranks / classes
        return abs(mean) <= 1e-4 * rms and self.least_sure <= share <= 1.001


RULES: Final[tuple[HealthRule, ...]] = (InitialLoss(),)
"""The rule on the first loss, with its defaults."""
