"""Rules on targets: those that no model can reach, that do not count or vary, and what they have of the given tokens."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from lightning_hooks.health.evidence import LOSS, Evidence
from lightning_hooks.health.layers import last_layer
from lightning_hooks.health.loss_line import LOSS_LINE
from lightning_hooks.health.roles import roles_of
from lightning_hooks.health.rule import HealthRule, Kind, Severity, Symptom, symptoms_where
from lightning_hooks.health.rules.base import Needs, Obstacles, no_loss, no_structure

_LEVEL: Final = 10  # losses whose median is the level at a step


@dataclass(frozen=True, kw_only=True)
class TargetsOutOfReach(HealthRule):
    """The output of a model is a tiny share of the targets that it is to predict, long after the training began.

    The targets follow from the gradient of the last layer's output. For a mean squared error, the gradient is twice the
    residual divided by the number of elements. A loss is taken for one if it equals the mean square of the residuals that
    follow. For a mean absolute error, all gradients have the same size, and the mean residual is the loss divided by their sum.
    As outputs far below the residuals cannot lower such a loss, it must be near its early level to be taken for one.

    Args:
        most: the multiple of the output that the residuals exceed.
        least: the size that the residuals exceed. Targets of a usual scale, about 1, are in reach, however small the output of
            a head that starts at zero still is.
        after: the number of first steps that are not judged.
        share: the share of the steps of the fit that are not judged either.
        latest: the step from which on all are judged, however long the fit is.
        rounding: the relative difference up to which the loss is a mean squared error.
        alike: the relative difference up to which gradients have the same size: a Huber loss has smaller ones at few samples.
        kept: the share of its early level above which a mean absolute error has not been lowered.
    """

    most: float = 30.0
    least: float = 10.0
    after: int = 40
    share: float = 0.2
    latest: int = 1000
    rounding: float = 0.01
    alike: float = 0.05
    kept: float = 0.8
    patience: int = 10
    every_n_steps: int = 20
    family: ClassVar[str] = "loss"
    kind: ClassVar[Kind] = "numbers"
    obstacles: ClassVar[Obstacles] = (no_loss, no_structure)
    needs: ClassVar[Needs] = (("output", "rms"), ("output", "count"), ("output_grad", "rms"), ("output_grad", "abs_max"))
    quotes: ClassVar[tuple[str, ...]] = LOSS_LINE
    next_steps: ClassVar[tuple[str, ...]] = (
        "Divide the targets by their standard deviation, or let the last layer multiply its output with it.",
    )
    source: ClassVar[str] = (
        "ours: after 40 steps, residuals of healthy trainings are 3 times the output at most; outputs of a thirtieth lower a "
        "squared error by 7 % at most"
    )
    consequence: ClassVar[str] = (
        "The last layer must grow by a factor of tens or more before it can fit the targets, which takes most of the training."
    )
    false_alarm: ClassVar[str] = (
        "Targets with rare huge values can have such a mean square while most are in reach. Look at their distribution before "
        "you accept it."
    )

    def check(self, evidence: Evidence) -> Iterable[Symptom]:
        roles, loss = roles_of(evidence), evidence.loss()
        outputs, counts, slopes, largest = (evidence.track(*need) for need in self.needs)
        if roles is None or loss is None or outputs is None or counts is None or slopes is None or largest is None:
            return
        last = last_layer(evidence, roles)
        if last not in outputs.names or last not in slopes.names:
            return
        sizes, slope = outputs.values[:, outputs.names.index(last)], slopes.values[:, slopes.names.index(last)]
        # `count` is summed over all ranks. The loss of a rank is the mean over the elements of that rank only.
        gradients = counts.values[:, counts.names.index(last)] / evidence.ranks * slope
        is_late = outputs.steps - evidence.first_step >= self._wait(evidence)
        limits = np.maximum(self.most * sizes, self.least)
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            squared, absolute = gradients / 2, loss.values[:, 0] / gradients
            is_squared = np.abs(np.square(squared) / loss.values[:, 0] - 1) < self.rounding
            is_absolute = np.abs(slope / largest.values[:, largest.names.index(last)] - 1) < self.alike
        is_absolute &= ~is_squared & self._stands(evidence)
        for residuals, is_such, text in ((squared, is_squared, _squared), (absolute, is_absolute, _absolute)):
            holds = is_such & is_late & np.isfinite(residuals) & (residuals > limits)
            of_last = outputs._replace(names=(last,), values=residuals[:, None])
            yield from symptoms_where(of_last, holds[:, None], limits[:, None], text)

    def _wait(self, evidence: Evidence) -> float:
        """The number of first steps that are not judged."""
        last = None if evidence.facts is None else evidence.facts.last_step
        return self.after if last is None else max(self.after, min(self.share * last, self.latest))

    def _stands(self, evidence: Evidence) -> bool:
        """Whether the loss is near its early level, or above it."""
        loss, early = evidence.loss(), evidence.early(*LOSS)
        if loss is None or early is None:
            return False
        known = loss.values[np.isfinite(loss.values[:, 0]), 0][-_LEVEL:]
        return bool(len(known)) and bool(np.median(known) > self.kept * early[0])


def _squared(residual: float) -> str:
    return f"the loss is the mean squared error of this output, which misses its targets by {residual:.3g}"


def _absolute(residual: float) -> str:
    return (
        f"all gradients of this output have one size, as those of a mean absolute error have; then it misses its targets by "
        f"{residual:.3g}"
    )


@dataclass(frozen=True, kw_only=True)
class TargetsIgnored(HealthRule):
    """No target counts: all of them are the class that the cross entropy ignores, and the loss is 0 or not a number.

    The targets of the losses of the first steps are read from the graph of the loss.
    """

    patience: int = 1
    every_n_steps: int = 5
    family: ClassVar[str] = "facts"
    looks_for: ClassVar[tuple[str, ...]] = ("targets-ignored",)
    quotes: ClassVar[tuple[str, ...]] = LOSS_LINE
    next_steps: ClassVar[tuple[str, ...]] = (
        "Print the targets of one batch: what is to be learned must not be `ignore_index` (-100 by default).",
        "If a template or a mask decides which tokens are targets, look whether it is found in the tokens of the batch.",
    )
    source: ClassVar[str] = "a definition; at five losses, because a batch may have no target by chance"
    consequence: ClassVar[str] = (
        "No element of the batch contributes to the loss, so that there is no gradient and nothing is learned."
    )
    false_alarm: ClassVar[str] = (
        "A single batch without targets is not told, because five losses must be so. No usual false alarm is known."
    )


@dataclass(frozen=True, kw_only=True)
class TargetsConstant(HealthRule):
    """All targets that the loader gives are the same number or class.

    It ends with the first target that is another one. Targets that the training step itself makes, such as the labels of a
    contrastive loss, are not judged. In a plain loop it is not known which targets these are.
    """

    patience: int = 1
    every_n_steps: int = 5
    family: ClassVar[str] = "facts"
    looks_for: ClassVar[tuple[str, ...]] = ("targets-constant",)
    next_steps: ClassVar[tuple[str, ...]] = (
        "Look at the labels of the data set: at the column that is read, at a join, at files that are sorted by class.",
        "If the data are sorted by class, let the loader shuffle.",
    )
    source: ClassVar[str] = "ours: an epoch of 200 samples or more, else 1,500 samples, and 10,000 if all are 0"
    consequence: ClassVar[str] = (
        "A model that gives one answer for all inputs is perfect on these targets, so that it learns nothing else."
    )
    false_alarm: ClassVar[str] = (
        "Rare classes can be absent from many samples. The rule waits for 1,500 samples or an epoch, and for 10,000 samples if "
        "all are 0."
    )


@dataclass(frozen=True, kw_only=True)
class EndNeverTarget(HealthRule):
    """The token that ends the sequences of a language model is never a target, so that the model never ends a text.

    The usual reason is padding that has the id of the end token, and is ignored. Some models are not to learn where texts end.
    """

    patience: int = 1
    every_n_steps: int = 5
    severity: Severity = Severity.INFO
    family: ClassVar[str] = "facts"
    looks_for: ClassVar[tuple[str, ...]] = ("end-never-target",)
    next_steps: ClassVar[tuple[str, ...]] = (
        "Give the padding an id of its own, or ignore it by the attention mask and not by its id.",
    )
    source: ClassVar[str] = "ours: 20 padded sequences of the first 12 steps, whose last targets vary"
    consequence: ClassVar[str] = "The language model never learns to end a text, so that generation runs until its limit."
    false_alarm: ClassVar[str] = (
        "Some models are not to learn where texts end, for example with packed sequences. The finding is therefore information."
    )


@dataclass(frozen=True, kw_only=True)
class TargetsAreInputs(HealthRule):
    """Each target is the token that the model is given at the same place, so that it learns to copy.

    In an autoencoder this is meant. A model of language is to predict the next token.
    """

    patience: int = 1
    every_n_steps: int = 5
    severity: Severity = Severity.INFO
    family: ClassVar[str] = "facts"
    looks_for: ClassVar[tuple[str, ...]] = ("targets-are-inputs",)
    next_steps: ClassVar[tuple[str, ...]] = (
        "If the model is to predict the next token, shift the targets: `logits[:, :-1]` and `tokens[:, 1:]`.",
    )
    source: ClassVar[str] = "a definition; of 200 targets or more"
    consequence: ClassVar[str] = (
        "A language model that sees its own target learns to copy it. The loss falls quickly, and generation is useless."
    )
    false_alarm: ClassVar[str] = (
        "In an autoencoder the targets are the inputs on purpose. The finding is therefore information."
    )


@dataclass(frozen=True, kw_only=True)
class TargetsMisplaced(HealthRule):
    """The targets of a model of language are not the next tokens: they are later ones, or those of some sequences are others.

    The targets of the first 12 steps are compared with the given tokens, of eight sequences each. Each sequence is judged whose
    targets all stand at one place: the given one, the next one, or up to four behind. Targets that are all the given tokens
    have a rule of their own, because an autoencoder has such.
    """

    patience: int = 1
    every_n_steps: int = 5
    family: ClassVar[str] = "facts"
    looks_for: ClassVar[tuple[str, ...]] = ("targets-misplaced",)
    quotes: ClassVar[tuple[str, ...]] = LOSS_LINE
    next_steps: ClassVar[tuple[str, ...]] = (
        "Shift once: `logits[:, :-1]` belong to `tokens[:, 1:]`. A model that computes its own loss shifts by itself.",
        "Print the given tokens and the targets of some sequences side by side.",
    )
    source: ClassVar[str] = "a definition; of 32 sequences or more, a tenth of which have targets at another place"
    consequence: ClassVar[str] = (
        "The model learns to predict another token than the one that generation appends, and the loss shows nothing of it."
    )
    false_alarm: ClassVar[str] = (
        "A model that is to predict several tokens ahead, and nothing else, is told too. Accept the finding there."
    )


@dataclass(frozen=True, kw_only=True)
class TargetsChange(HealthRule):
    """Samples that come again in a later epoch have other targets than before, so that labels do not belong to their inputs.

    Some samples of each batch of a Trainer are known by a few of their numbers, in the first epochs of at most 2,048 batches.
    The loss must have one target for each sample, which the loader gave. Numbers must differ by a tenth of their range. Where
    equal inputs have different targets within one epoch, nothing is told.
    """

    patience: int = 1
    every_n_steps: int = 5
    family: ClassVar[str] = "facts"
    looks_for: ClassVar[tuple[str, ...]] = ("targets-change",)
    quotes: ClassVar[tuple[str, ...]] = LOSS_LINE
    next_steps: ClassVar[tuple[str, ...]] = (
        "Look at what orders or draws inputs and targets: one `permutation`, index or sampler must serve both.",
        "Print the same sample in two epochs, from the loader and from the files.",
    )
    source: ClassVar[str] = "a definition; a tenth of 96 samples that came again, which mistakes of the data are not"
    consequence: ClassVar[str] = (
        "Part of the labels belong to other inputs, so that the model learns them by heart or not at all, and is unsure of the "
        "rest."
    )
    false_alarm: ClassVar[str] = (
        "Labels that a teacher makes anew in each epoch, or that are drawn from several answers, change on purpose. Accept the "
        "finding there."
    )


RULES: Final[tuple[HealthRule, ...]] = (
    *(TargetsOutOfReach(), TargetsIgnored(), TargetsConstant()),
    *(EndNeverTarget(), TargetsAreInputs(), TargetsMisplaced(), TargetsChange()),
)
"""The rules on targets, with their defaults."""
