"""Checks on the loss: labels fit the head, the activation in front of it is right, and it begins near that of chance."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

from lightning_hooks.checks.check import Check
from lightning_hooks.checks.errors import OutOfRangeError
from lightning_hooks.checks.losses import BINARY, BINARY_WITH_LOGITS, CROSS_ENTROPY, ENTROPIES, NLL, LossCall, rows_sum_to_one
from lightning_hooks.checks.result import CheckResult
from lightning_hooks.checks.trial import Trial
from lightning_hooks.health.rules import first_loss
from lightning_hooks.health.rules import loss as rules

_NO_LOSS: Final = "the step calls no cross entropy of torch"
_NO_KNOWN_LOSS: Final = "the step calls no loss function of torch that is known here"
_RANGES: Final = {"Tanh": (-1.0, 1.0, "a tanh"), "Sigmoid": (0.0, 1.0, "a sigmoid"), "Relu": (0.0, math.inf, "a ReLU")}
"""The lowest and the highest output of an activation, and how a message names it; by the name of its autograd node."""


@dataclass(frozen=True, kw_only=True)
class LabelsFitHead(Check):
    """Every label has an output of the head, and every token a vector; numbers have the shape of the output, and its range.

    Labels of a binary loss lie between 0 and 1.
    """

    probes: ClassVar[tuple[str, ...]] = ("loss_calls", "broadcasts")
    next_steps: ClassVar[tuple[str, ...]] = (
        "Give the head as many outputs as there are classes, and count classes from 0.",
        "Mark elements that are not to count with `ignore_index`.",
    )
    source: ClassVar[str] = "a definition: no threshold"
    not_shown: ClassVar[str] = "shapes that stop fitting only in a later batch, such as a last one of another size"

    def run(self, trial: Trial) -> CheckResult:
        try:
            calls = trial.step.loss_calls
        except OutOfRangeError as error:
            return self.failed([error.row], error.text, error.measured, error.threshold)
        for call in calls:
            if call.function in (CROSS_ENTROPY, NLL) and call.classes == 1:
                return self.failed([call.row], "the cross entropy of a single output is always 0", 1, 2)
            if call.function in (BINARY, BINARY_WITH_LOGITS):
                least, most = float(call.target.min()), float(call.target.max())
                if least < 0 or most > 1:
                    text = f"labels of a binary loss reach from {least:.3g} to {most:.3g}"
                    return self.failed([call.row], text, least if least < 0 else most, 0 if least < 0 else 1)
        for call in calls:
            if call.function in ENTROPIES:
                continue
            if call.input.shape != call.target.shape and call.input.numel() > 1 and call.target.numel() > 1:
                shapes = f"the output has the shape {tuple(call.input.shape)} and the target {tuple(call.target.shape)}"
                return self.failed([call.row], f"{shapes}, so that `{call.function}` compares each with each")
        if trial.step.broadcasts:
            shapes = trial.step.broadcasts[0]
            return self.failed([""], f"the difference of an output and the batch, {shapes}, compares each sample with each")
        for call in calls:
            doubt = _out_of_reach(call)
            if doubt:
                return self.warned([call.row], doubt)
        if not calls:
            return self.skipped(_NO_KNOWN_LOSS)
        call = calls[0]
        if call.counted.numel():
            most = int(call.counted.max())
            return self.passed(f"labels up to {most} fit {call.classes} outputs", most, call.classes - 1)
        return self.passed("all labels are in range")


def _out_of_reach(call: LossCall) -> str:
    if call.function in ENTROPIES or call.before not in _RANGES or not call.target.numel():
        return ""
    least, most, activation = _RANGES[call.before]
    lowest, highest = float(call.target.min()), float(call.target.max())
    # The activation comes near its limits only, so a target at a limit is usual.
    margin = 1e-3
    if lowest < least - margin or highest > most + margin:
        return f"targets reach from {lowest:.3g} to {highest:.3g}, and {activation} stands in front of `{call.function}`"
    return ""


@dataclass(frozen=True, kw_only=True)
class ActivationBeforeLoss(Check):
    """The loss gets what it is made for: logits for cross entropy, log-probabilities for `nll_loss`."""

    probes: ClassVar[tuple[str, ...]] = ("loss_calls",)
    next_steps: ClassVar[tuple[str, ...]] = (
        "Give `cross_entropy` and `binary_cross_entropy_with_logits` the output of the last layer itself.",
        "Put `log_softmax` in front of `nll_loss`.",
    )
    source: ClassVar[str] = "documentation of torch: these losses apply softmax or sigmoid themselves"
    not_shown: ClassVar[str] = "whether the loss stands still because an activation, such as a ReLU, limits the logits"

    def run(self, trial: Trial) -> CheckResult:
        calls = [call for call in trial.step.loss_calls if call.function in ENTROPIES]
        if not calls:
            return self.skipped(_NO_LOSS)
        for call in calls:
            fault = _fault(call)
            if fault:
                return self.failed([call.row], fault)
        for call in calls:
            doubt = _doubt(call)
            if doubt:
                return self.warned([call.row], doubt)
        return self.passed(f"{', '.join(sorted({call.function for call in calls}))} gets what it is made for")


def _fault(call: LossCall) -> str:
    before = call.before.lower()
    if call.function == CROSS_ENTROPY:
        if before == "sigmoid":
            return "a sigmoid stands in front of `cross_entropy`, which applies softmax itself"
        if before == "softmax" or (call.classes > 1 and rows_sum_to_one(call.input)):
            return "a softmax stands in front of `cross_entropy`, which applies it again"
    if call.function == BINARY_WITH_LOGITS and before in ("sigmoid", "softmax"):
        return f"a {before} stands in front of `binary_cross_entropy_with_logits`, which applies a sigmoid itself"
    if call.function == NLL and call.before != "LogSoftmax" and call.classes > 1 and call.input.dim() > 1:
        if rows_sum_to_one(call.input):
            return "probabilities are given to `nll_loss`, which takes their logarithms"
        if not rows_sum_to_one(call.input.float().exp()):
            return "`nll_loss` gets no log-probabilities: their exponentials do not add up to 1"
    return ""


def _doubt(call: LossCall) -> str:
    if call.function not in (CROSS_ENTROPY, BINARY_WITH_LOGITS):
        return ""
    if call.before == "LogSoftmax" and call.function == CROSS_ENTROPY:
        return "a log_softmax stands in front of `cross_entropy`, which applies it again without effect"
    if call.before in ("Relu", "Threshold"):
        return f"a ReLU stands in front of `{call.function}`, so that no logit can be negative"
    if call.before == "Tanh":
        return f"a tanh stands in front of `{call.function}`, so that no logit can exceed 1"
    return ""


@dataclass(frozen=True, kw_only=True)
class InitialLoss(Check):
    """Before the training, cross entropy is not far above that of chance, ln(classes). A trained model may have less.

    Args:
        factor: the multiple of chance that is usual at most.
        more: the loss above chance that is usual at most, for few classes.
    """

    factor: float = first_loss.InitialLoss.factor
    more: float = first_loss.InitialLoss.more
    probes: ClassVar[tuple[str, ...]] = ("loss_calls",)
    next_steps: ClassVar[tuple[str, ...]] = first_loss.InitialLoss.next_steps
    settled_by: ClassVar[Mapping[str, str]] = {"Look whether the inputs are normalised.": "InputNotNormalised"}
    source: ClassVar[str] = first_loss.InitialLoss.source
    not_shown: ClassVar[str] = "whether the loss stays there in the next updates"

    def run(self, trial: Trial) -> CheckResult:
        calls = [
            call for call in trial.step.loss_calls if call.function in ENTROPIES and call.input.numel() and call.input.dim()
        ]
        if not calls:
            return self.skipped(_NO_LOSS)
        for call in calls:
            if isinstance(trial.samples, tuple) and _compares_samples(call, trial.samples.size):
                return self.skipped("the loss compares samples with each other, and its scale is a temperature")
        worst: tuple[float, float, LossCall] | None = None
        for call in calls:
            measured, usual = call.mean(), max(call.chance * self.factor, call.chance + self.more)
            if math.isfinite(measured) and (worst is None or measured / usual > worst[0] / worst[1]):
                worst = measured, usual, call
        if worst is None:
            return self.skipped("the loss is not finite; see NonFinite")
        measured, usual, call = worst
        classes = call.classes if call.function in (CROSS_ENTROPY, NLL) else 2
        text = f"the loss is {measured:.3g}, and ln({classes}) is {call.chance:.3g}"
        if call.counted.numel() and call.entropy < call.chance - 0.1:
            text = f"{text}; the labels have an entropy of {call.entropy:.3g}"
        if measured > usual:
            return self.warned([call.row], text, measured, usual)
        return self.passed(text, measured, usual)


def _compares_samples(call: LossCall, samples: int) -> bool:
    """Whether the classes of a loss are the samples of the batch."""
    shape = call.input.shape
    return (
        call.function == CROSS_ENTROPY and len(shape) == 2 and shape[0] % samples == 0 and shape[1] in (shape[0], shape[0] - 1)
    )


@dataclass(frozen=True, kw_only=True)
class LossUnbounded(Check):
    """The step lowers its cross entropy, which is never below 0, and does not raise it.

    The loss of the step is below 0, and so is the derivative with respect to each cross entropy that it calls. A step with
    several losses may raise one of them on purpose, as a GAN does.
    """

    probes: ClassVar[tuple[str, ...]] = ("losses", "loss_calls")
    next_steps: ClassVar[tuple[str, ...]] = rules.LossUnbounded.next_steps[:1]
    source: ClassVar[str] = "a definition: a cross entropy is never below 0"
    not_shown: ClassVar[str] = "a loss of another kind that falls without end"

    def run(self, trial: Trial) -> CheckResult:
        losses = trial.step.losses
        slopes = [(call, call.slope) for call in trial.step.loss_calls if call.function in ENTROPIES and call.slope is not None]
        if not slopes:
            return self.skipped(_NO_LOSS)
        if len(losses) != 1:
            return self.skipped(f"a step has {len(losses)} losses, and may raise one of them on purpose")
        call, highest = max(slopes, key=lambda each: each[1])
        if highest < 0 and losses[0] < 0:
            text = (
                f"the loss of the step is {losses[0]:.3g}, below 0: the step raises `{call.function}`, as its sign is negative"
            )
            return self.warned([call.row], text, losses[0], 0.0)
        return self.passed(f"the step lowers `{call.function}`", losses[0], 0.0)


CHECKS: Final[tuple[Check, ...]] = (LabelsFitHead(), ActivationBeforeLoss(), InitialLoss(), LossUnbounded())
"""The checks on the loss, with their defaults."""
