"""The check that the labels of a batch differ."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Final

from torch import Tensor

from lightning_hooks.checks.check import Check
from lightning_hooks.checks.result import CheckResult
from lightning_hooks.checks.trial import Trial
from lightning_hooks.nested.tensors import tensors_of


@dataclass(frozen=True, kw_only=True)
class LabelsVary(Check):
    """The labels of the samples are not all of one class.

    Only where each sample has one label, which the loss gets as the batch holds it, and where balanced classes would hardly
    ever give such a batch. With two classes one may be rare, so that the check is skipped.

    Args:
        least_chance: the smallest probability of a batch of one class, if all classes were as frequent, that is no chance.
    """

    least_chance: float = 1e-6
    probes: ClassVar[tuple[str, ...]] = ("loss_calls",)
    next_steps: ClassVar[tuple[str, ...]] = (
        "Look how labels are read and encoded, and print those of some samples.",
        "Shuffle the samples, if they are sorted by class.",
    )
    source: ClassVar[str] = "a definition: the entropy of the labels is 0, which no label of balanced classes is by chance"
    consequence: ClassVar[str] = "From labels of one class the model learns to give this class always."
    false_alarm: ClassVar[str] = (
        "A batch of one class may come from data that are sorted on purpose, as in some evaluations. Shuffle them, or accept "
        "the result."
    )

    def run(self, trial: Trial) -> CheckResult:
        calls = [call for call in trial.step.loss_calls if call.counted.numel()]
        if not calls:
            return self.skipped("the step calls no cross entropy of torch with indices of classes")
        # A loss that compares views of a sample makes labels itself, all of them 0: only those of the batch are judged. Labels
        # of pixels and tokens, which may well be equal, have more dimensions there.
        given = [each for each in tensors_of(trial.batch) if each.dim() == 1]
        calls = [call for call in calls if any(_are_equal(call.target, each) for each in given)]
        if not calls:
            return self.skipped("it is not known which label belongs to which sample")
        for call in calls:
            count = call.counted.numel()
            if call.entropy > 0:
                continue
            if call.classes < 3:
                return self.skipped(f"all {count} labels are {int(call.counted[0])}, as where one of two classes is rare")
            log_chance = (1 - count) * math.log(call.classes)
            if log_chance < math.log(self.least_chance):
                return self.warned([call.row], f"all {count} labels of the batch are {int(call.counted[0])}", 0.0, 0.0)
        most = max(call.entropy for call in calls)
        return self.passed(f"the labels of the batch have an entropy of {most:.3g}", most, 0.0)


def _are_equal(target: Tensor, given: Tensor) -> bool:
    return target.shape == given.shape and bool((target == given.to(target.device)).all())


CHECKS: Final[tuple[Check, ...]] = (LabelsVary(),)
"""The check on labels, with its defaults."""
