"""Rules on buffers: the running statistics of norms, and copies of a model that are to follow it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Final

from lightning_hooks.health.evidence import Evidence
from lightning_hooks.health.rule import HealthRule, Kind, Severity, Symptom
from lightning_hooks.health.usage import COPIES, is_named_copy
from lightning_hooks.records.facts import Sighting, StepFacts

_KEPT: Final = frozenset({"teacher", "frozen", "perceptual", "lpips"})
"""Words in the names of modules that are to stay as they are, and so are their running statistics."""
_AVERAGES: Final = tuple(word for word in COPIES if word not in _KEPT)


@dataclass(frozen=True, kw_only=True)
class FrozenNormMoves(HealthRule):
    """The parameters of a norm are frozen, but it is in training mode and its running statistics move at each step.

    The part of the model that is meant to stay gives other outputs in evaluation, and in training what it gives for a sample
    depends on the rest of the batch. As statistics may be meant to follow new data, this is a note, until the loss shows harm.
    It is a fact of a norm that was in evaluation mode before: a call of `train()` for the whole model has put it back.
    """

    patience: int = 1
    every_n_steps: int = 5
    family: ClassVar[str] = "facts"
    kind: ClassVar[Kind] = "pattern"
    looks_for: ClassVar[tuple[str, ...]] = ("frozen-norm-moves",)
    next_steps: ClassVar[tuple[str, ...]] = (
        "Call `eval()` on the frozen part after each `train()` of the model; an override of `train()` can do so.",
        "Accept this finding if the statistics are to follow the new data.",
    )
    source: ClassVar[str] = "a definition; at three looks in a row, because a discriminator may be frozen for a while"
    consequence: ClassVar[str] = (
        "The frozen part gives other outputs in evaluation than in training, and its outputs for one sample depend on the rest "
        "of the batch."
    )
    false_alarm: ClassVar[str] = (
        "The statistics may be meant to follow new data, as in domain adaptation. The finding is a note until the loss shows "
        "harm."
    )

    def check(self, evidence: Evidence) -> Iterable[Symptom]:
        return (symptom for symptom in super().check(evidence) if not is_named_copy(symptom.row, _AVERAGES))


@dataclass(frozen=True, kw_only=True)
class AveragedIntegers(HealthRule):
    """An averaged copy of the model has other integers in a buffer that the model never changes, such as a table of positions.

    The average of a number with itself may fall a hair short, and is rounded down when it is written to integers. The copy
    then looks up other places than the model. Counters of batches are left out, as nothing depends on them.
    """

    patience: int = 1
    every_n_steps: int = 5
    family: ClassVar[str] = "facts"
    looks_for: ClassVar[tuple[str, ...]] = ("averaged-integers",)
    next_steps: ClassVar[tuple[str, ...]] = (
        "Average floating-point tensors only, and copy all others: `if value.is_floating_point()`.",
        "With `AveragedModel` leave `use_buffers=False`, which copies buffers.",
    )
    source: ClassVar[str] = "a definition: buffers that never change in the model are equal in its copies"
    consequence: ClassVar[str] = (
        "The averaged copy looks up wrong places, so that its evaluation is far worse than that of the model."
    )
    false_alarm: ClassVar[str] = (
        "Counters of batches are left out, and the buffer must never change in the model. No usual false alarm is known."
    )


@dataclass(frozen=True, kw_only=True)
class AverageWithoutStatistics(HealthRule):
    """The weights of a copy follow the model, and the running statistics of its batch norms stay as they were.

    In evaluation the copy normalises with statistics of other weights. If the weights are written to at each step this is a
    fact; else the statistics may be taken at the end, as `update_bn` does after stochastic weight averaging.
    """

    patience: int = 1
    every_n_steps: int = 5
    family: ClassVar[str] = "facts"
    kind: ClassVar[Kind] = "pattern"
    looks_for: ClassVar[tuple[str, ...]] = ("average-without-statistics",)
    next_steps: ClassVar[tuple[str, ...]] = (
        "Copy the buffers of the model into the average when you update its weights, as `AveragedModel` does.",
        "Or call `torch.optim.swa_utils.update_bn` before the average is evaluated, and accept this finding.",
    )
    source: ClassVar[str] = "a definition; at eight looks, because a copy may just have been made"
    consequence: ClassVar[str] = (
        "The averaged copy normalises with statistics of other weights, so that its evaluation is worse than its weights are."
    )
    false_alarm: ClassVar[str] = (
        "If `update_bn` computes the statistics before the evaluation, nothing is wrong. Accept the finding in that case."
    )


@dataclass(frozen=True, kw_only=True)
class AverageLags(HealthRule):
    """In half of a fit an average of the weights has not gone a tenth of the way of the model, with which it began.

    At the end it still is mostly the weights of the beginning, which are random. In a copy inside the model, which may be a
    slow teacher on purpose, this is a note. It is not judged in fine-tuning, where the model itself stays near its beginning.

    Args:
        share: of the steps of the fit after which the way is judged.
        unknown: the step from which on it is judged where the end of the fit is not known.
    """

    patience: int = 1
    every_n_steps: int = 5
    share: float = 0.5
    unknown: int = 2000
    family: ClassVar[str] = "facts"
    kind: ClassVar[Kind] = "pattern"
    looks_for: ClassVar[tuple[str, ...]] = ("average-lags",)
    next_steps: ClassVar[tuple[str, ...]] = (
        "Choose the decay by the length of the fit: the average is one of about the last 1 / (1 - decay) updates.",
        "Begin with a small decay, `min(decay, (1 + step) / (10 + step))`.",
    )
    source: ClassVar[str] = "ours: an average that has gone a tenth of the way in half a fit goes a fifth of it in all"
    consequence: ClassVar[str] = (
        "The averaged copy is still mostly the random weights of the beginning, so that its evaluation says little about the "
        "training."
    )
    false_alarm: ClassVar[str] = (
        "A slow teacher inside the model is meant in some methods. In such a copy the finding is a note until the loss shows "
        "harm."
    )

    def counts(self, sighting: Sighting, facts: StepFacts | None, evidence: Evidence) -> bool:
        last = None if facts is None else facts.last_step
        return evidence.step >= (self.unknown if last is None else max(self.share * last, 50))


@dataclass(frozen=True, kw_only=True)
class NormStatisticsSlow(HealthRule):
    """Running statistics take so little of each batch that evaluation uses those with which the norm was created.

    What a sighting has measured is the share of earlier statistics that one batch leaves.

    Args:
        left: the smallest share of the first statistics, mean 0 and variance 1, that is too much at the end of the fit.
        steps: the least number of steps of a fit that is judged.
        unknown: the step from which on the share of now is judged where the end of the fit is not known.
    """

    patience: int = 1
    every_n_steps: int = 5
    left: float = 0.25
    steps: int = 100
    unknown: int = 500
    family: ClassVar[str] = "facts"
    looks_for: ClassVar[tuple[str, ...]] = ("norm-statistics-slow",)
    next_steps: ClassVar[tuple[str, ...]] = (
        "Give the norm a larger `momentum`: in PyTorch it is the share of the new batch, 0.1 by default.",
        "Use `momentum=None`, the mean of all batches, if single batches vary much.",
    )
    source: ClassVar[str] = "ours: with a quarter of mean 0 and variance 1 in them the statistics are not those of the data"
    consequence: ClassVar[str] = (
        "In evaluation the norm normalises with mean 0 and variance 1 in place of the statistics of the data, so that "
        "validation is far worse than training."
    )
    false_alarm: ClassVar[str] = (
        "A fit that only continues one whose statistics have settled is told too, because only the share of the first "
        "statistics is known."
    )

    def counts(self, sighting: Sighting, facts: StepFacts | None, evidence: Evidence) -> bool:
        if sighting.measured == 1:
            return True
        last, batches = (None, 1) if facts is None else (facts.last_step, facts.accumulate or 1)
        steps = evidence.step + 1 if last is None else last
        return steps >= (self.unknown if last is None else self.steps) and sighting.measured ** (batches * steps) >= self.left


@dataclass(frozen=True, kw_only=True)
class NormStatisticsOfOneBatch(HealthRule):
    """Running statistics are nearly those of the last batch alone, as with TensorFlow's `momentum=0.99` in PyTorch.

    It may be meant, and does little harm with large batches, so this is information.
    """

    patience: int = 1
    every_n_steps: int = 5
    severity: Severity = Severity.INFO
    family: ClassVar[str] = "facts"
    looks_for: ClassVar[tuple[str, ...]] = ("norm-statistics-of-one-batch",)
    next_steps: ClassVar[tuple[str, ...]] = (
        "PyTorch's `momentum` is the share of the new batch: write 0.01 for the 0.99 of TensorFlow.",
    )
    source: ClassVar[str] = "a definition; from 0.9 on"
    consequence: ClassVar[str] = "Evaluation depends on which batch came last, so that validation jumps from epoch to epoch."
    false_alarm: ClassVar[str] = (
        "With very large batches the statistics of one batch are good enough, so that the finding is information."
    )


RULES: Final[tuple[HealthRule, ...]] = (
    *(FrozenNormMoves(), AveragedIntegers(), AverageWithoutStatistics(), AverageLags()),
    *(NormStatisticsSlow(), NormStatisticsOfOneBatch()),
)
"""The rules on buffers, with their defaults."""
