"""Checks on layers: no bias in front of a norm, an even scale of activations, and normalised inputs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.instancenorm import _InstanceNorm

from lightning_hooks.checks.check import Check
from lightning_hooks.checks.record import Layer
from lightning_hooks.checks.result import CheckResult
from lightning_hooks.checks.trial import Trial
from lightning_hooks.errors import counted
from lightning_hooks.health.layers import LINK
from lightning_hooks.health.roles import WEIGHTED, keeps_offset
from lightning_hooks.health.rules import initialisation as rules
from lightning_hooks.health.rules.inputs import InputNotNormalised as InputRule


@dataclass(frozen=True, kw_only=True)
class BiasBeforeNorm(Check):
    """No trainable bias stands in front of a norm that subtracts the mean of each channel."""

    probes: ClassVar[tuple[str, ...]] = ("sources",)
    next_steps: ClassVar[tuple[str, ...]] = (
        "Create the layer with `bias=False`: the norm subtracts the bias and has its own.",
    )
    source: ClassVar[str] = "a definition: batch norm of x + b is batch norm of x"
    consequence: ClassVar[str] = "The norm subtracts the bias again, so that it costs memory and time and has no effect."
    false_alarm: ClassVar[str] = (
        "The bias does no harm to the result. A checkpoint that holds it is a good reason to keep it; accept the result then."
    )

    def run(self, trial: Trial) -> CheckResult:
        sources = trial.step.sources
        norms = [each.name for each in trial.names.modules if _subtracts(each.value) and each.name in sources]
        if not norms:
            return self.passed("no norm subtracts the mean of a channel")
        found = [sources[name] for name in norms if _has_bias(trial.module(sources[name]))]
        if not found:
            return self.passed(f"no bias stands in front of {counted(len(norms), 'norm')}")
        return self.warned([f"{name}.bias" for name in found], "the norm behind this bias takes it away", len(found), 0)


def _subtracts(module: nn.Module) -> bool:
    if isinstance(module, _BatchNorm):
        return module.training or not module.track_running_stats
    return isinstance(module, _InstanceNorm) and isinstance(module, _NormBase)


def _has_bias(module: nn.Module | None) -> bool:
    bias = getattr(module, "bias", None)
    is_layer = module is not None and any(hasattr(module, name) for name in ("in_features", "in_channels"))
    return is_layer and isinstance(bias, nn.Parameter) and bias.requires_grad


@dataclass(frozen=True, kw_only=True)
class PoorInitialization(Check):
    """No layer makes its input far larger, and no row of layers makes it fade or grow by orders of magnitude.

    Args:
        most_gain: the largest usual quotient of output and input of a layer, and the largest usual output of an embedding.
        most_growth: the largest usual growth from the first to the last layer of a row without norms; also its least decay.
    """

    most_gain: float = rules.PoorInitialization.most_gain
    most_growth: float = rules.PoorInitialization.most_growth
    probes: ClassVar[tuple[str, ...]] = ("layers",)
    next_steps: ClassVar[tuple[str, ...]] = (
        "Use the initialisation that belongs to the activation: `kaiming_normal_` for ReLU, `xavier_uniform_` for tanh.",
        "Put a norm between the layers.",
    )
    source: ClassVar[str] = rules.PoorInitialization.source
    not_shown: ClassVar[str] = "whether the output stays as large or as small in the next steps; and recurrent layers"

    def run(self, trial: Trial) -> CheckResult:
        layers = [each for each in trial.step.layers if each.output_rms > 0 and math.isfinite(each.output_rms)]
        weighted = [each for each in layers if each.role in WEIGHTED]
        if not weighted:
            return self.skipped("no layer with weights has a finite output other than 0")
        has_norms = any(each.role == "norm" for each in layers)
        advice = self.next_steps[: 1 if has_norms else 2]
        for each in layers:
            gain = each.output_rms / each.input_rms if each.role in WEIGHTED and each.input_rms > 0 else 0.0
            # If the bias of a layer makes its output large, the weights are small.
            if gain > self.most_gain and _usual_gain(trial.module(each.name)) >= self.most_gain / 10:
                text = f"the output is {gain:.3g} times as large as the input"
                return self.warned([each.name], text, gain, self.most_gain, next_steps=advice)
            if each.role == "embedding" and each.output_rms > self.most_gain:
                size = each.output_rms
                text = f"the vectors have a root mean square of {size:.3g}"
                return self.warned([each.name], text, size, self.most_gain, next_steps=advice)
        extreme = max(_reaches(layers), key=lambda each: abs(math.log(each[1])), default=("", 1.0))
        name, reach = extreme
        if reach > self.most_growth or reach < 1 / self.most_growth:
            threshold = self.most_growth if reach > 1 else 1 / self.most_growth
            text = f"the output is {reach:.2g} times as large as that of the first layer of its row"
            return self.warned([name], text, reach, threshold, next_steps=advice)
        layers_said = counted(len(weighted), "layer")
        return self.passed(f"{layers_said}; the scale changes by a factor of {reach:.2g} at most between norms", reach)


def _usual_gain(module: nn.Module | None) -> float:
    """The gain of a layer whose inputs are independent: the root mean square of its weight times the root of its fan-in."""
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor) or weight.dim() < 2 or not weight.numel():
        return math.inf
    fan_in = weight.numel() / weight.shape[0]
    return float(weight.detach().float().square().mean().sqrt()) * math.sqrt(fan_in)


def _reaches(layers: Sequence[Layer]) -> Iterator[tuple[str, float]]:
    """The output of each layer that feeds another one over that of the first layer of its row."""
    first: Layer | None = None
    before: Layer | None = None
    for layer in layers:
        if layer.role not in WEIGHTED:
            if layer.role in ("norm", "embedding", "attention", "recurrent"):
                first = before = None
            continue
        if before is None or not before.output_rms / LINK < layer.input_rms < before.output_rms * LINK:
            first = layer
        elif first is not None and first is not before:
            yield before.name, before.output_rms / first.output_rms
        before = layer


@dataclass(frozen=True, kw_only=True)
class InputNotNormalised(Check):
    """The input of the first layer with weights is not far from mean 0 and standard deviation 1.

    Args:
        most: the largest usual root mean square.
        least: the smallest usual root mean square.
        most_offset: the largest usual quotient of mean and standard deviation, for a mean above 3.
    """

    most: float = InputRule.most
    least: float = InputRule.least
    most_offset: float = InputRule.most_offset
    probes: ClassVar[tuple[str, ...]] = ("layers",)
    next_steps: ClassVar[tuple[str, ...]] = (
        "Subtract the mean of each feature of the training data, and divide by its standard deviation.",
    )
    source: ClassVar[str] = InputRule.source
    not_shown: ClassVar[str] = "whether other batches are as far from normal as this one"

    def run(self, trial: Trial) -> CheckResult:
        first = next((each for each in trial.step.layers if each.role in _FIRST), None)
        if first is None or first.role not in (*WEIGHTED, "recurrent", "attention"):
            return self.skipped("the first layer with weights is a norm or an embedding" if first else "no layer has weights")
        if math.isnan(first.input_rms):
            return self.skipped("the first layer gets no float input, or one that is not finite")
        rms, mean, std = first.input_rms, first.input_mean, first.input_std
        numbers = f"the input has a mean of {mean:.3g} and a standard deviation of {std:.3g}"
        if rms == 0:
            return self.warned([first.name], "the input is 0 everywhere", rms, self.least)
        behind = trial.step.layers[trial.step.layers.index(first) + 1 :][:1]
        norm = next((each.name for each in behind if each.role == "norm" and first.role in WEIGHTED), None)
        has_offset = abs(mean) > 3 and abs(mean) > self.most_offset * std
        # The eps of a norm keeps an input small that is far below 1.
        if norm is not None and rms >= self.least:
            if not has_offset or not keeps_offset(type(trial.module(norm)).__name__):
                return self.skipped(f"{norm} behind the first layer is a norm, which removes the scale of its input")
            numbers = f"{numbers}; {norm} behind it is a norm over the units of each sample, which does not remove an offset"
        elif rms > self.most:
            return self.warned([first.name], numbers, rms, self.most)
        if 0 < rms < self.least:
            return self.warned([first.name], numbers, rms, self.least)
        if has_offset:
            return self.warned([first.name], numbers, abs(mean) / std if std else math.inf, self.most_offset)
        return self.passed(f"{first.name}: {numbers}", rms, self.most)


_FIRST: Final = (*WEIGHTED, "recurrent", "attention", "norm", "embedding")

CHECKS: Final[tuple[Check, ...]] = (BiasBeforeNorm(), PoorInitialization(), InputNotNormalised())
"""The checks on layers, with their defaults."""
