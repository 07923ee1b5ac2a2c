"""Rules on what a loss is given: shapes that fit each other, and the numbers that it is made for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from lightning_hooks.health.loss_line import LOSS_LINE
from lightning_hooks.health.rule import HealthRule, Kind


@dataclass(frozen=True, kw_only=True)
class LabelsFitHead(HealthRule):
    """The two sides of a loss have shapes that do not fit, so that each sample is compared with all others.

    The graph of the first losses shows an operation on [n, 1] and [n], whose result [n, n] becomes a mean or a sum. Pairs that
    are made on purpose, [n, 1] and [1, n], are not told.
    """

    patience: int = 1
    every_n_steps: int = 5
    family: ClassVar[str] = "facts"
    looks_for: ClassVar[tuple[str, ...]] = ("each-with-each",)
    quotes: ClassVar[tuple[str, ...]] = LOSS_LINE
    next_steps: ClassVar[tuple[str, ...]] = (
        "Give both tensors the same shape: `squeeze(-1)` of the one with an axis of 1, or `view_as` the other.",
    )
    source: ClassVar[str] = "a definition: no threshold"
    consequence: ClassVar[str] = (
        "The loss averages over all pairs of samples, so that the model learns the mean of the targets. torch only warns about "
        "some of these losses."
    )
    false_alarm: ClassVar[str] = (
        "A loss of all pairs on purpose, of [n, 1] and [1, n], is not told. Write the broadcast explicitly with these shapes "
        "if it is meant."
    )


@dataclass(frozen=True, kw_only=True)
class ActivationBeforeLoss(HealthRule):
    """A loss of classes is not given what it is made for: logits, or logarithms of probabilities.

    The graph of the first losses shows which operation stands in front of the loss. Probabilities are told as a fact. An
    activation that only limits the logits is a note, unless the loss shows harm.
    """

    patience: int = 1
    every_n_steps: int = 5
    family: ClassVar[str] = "facts"
    kind: ClassVar[Kind] = "pattern"
    looks_for: ClassVar[tuple[str, ...]] = ("activation-before-loss",)
    quotes: ClassVar[tuple[str, ...]] = LOSS_LINE
    next_steps: ClassVar[tuple[str, ...]] = (
        "Give `cross_entropy` and `binary_cross_entropy_with_logits` the output of the last layer itself.",
        "Put `log_softmax` in front of `nll_loss` and `kl_div`.",
    )
    source: ClassVar[str] = "documentation of torch: these losses apply softmax or sigmoid themselves, or take logarithms"
    consequence: ClassVar[str] = (
        "The loss applies an activation twice, or takes the logarithm of the wrong numbers, so that gradients are too small or "
        "wrong."
    )
    false_alarm: ClassVar[str] = (
        "An activation that limits logits on purpose, such as a tanh with a factor, is a note until the loss shows harm."
    )


RULES: Final[tuple[HealthRule, ...]] = (LabelsFitHead(), ActivationBeforeLoss())
"""The rules on what a loss is given, with their defaults."""
