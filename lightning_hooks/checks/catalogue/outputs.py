"""Checks on outputs: finite, different for different samples, and the same twice in evaluation mode."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import torch
from torch import Tensor, nn

from lightning_hooks.checks.batch import is_float, kind_of
from lightning_hooks.checks.check import Check
from lightning_hooks.checks.names import ROOT_NAME
from lightning_hooks.checks.probes.functions import DROPOUTS
from lightning_hooks.checks.probes.noise import Noise
from lightning_hooks.checks.randomness import shuffle_generators
from lightning_hooks.checks.record import Call
from lightning_hooks.checks.result import CheckResult
from lightning_hooks.checks.trial import Trial, outputs_of
from lightning_hooks.engine.participants.facts import role_of
from lightning_hooks.errors import counted
from lightning_hooks.nested.tensors import named_tensors, tensors_in

_MASKS: Final = {"rand", "rand_like", "bernoulli", "bernoulli_", "uniform_"}


@dataclass(frozen=True, kw_only=True)
class NonFinite(Check):
    """The loss, the outputs and the gradients are finite; otherwise the first module is named that makes NaN or infinity."""

    probes: ClassVar[tuple[str, ...]] = ("losses", "calls", "grads", "layers")
    next_steps: ClassVar[tuple[str, ...]] = (
        "Look for a division by 0, `log(0)`, `sqrt` of a negative number, `exp` of a large one, and for NaN in the data.",
    )
    source: ClassVar[str] = "a definition: any number that is not finite"
    not_shown: ClassVar[str] = "a number that stops being finite only after the first step, and gradients under a loss scaler"

    def run(self, trial: Trial) -> CheckResult:
        step = trial.step
        bad_losses = [loss for loss in step.losses if not math.isfinite(loss)]
        bad_outputs = [call.name for call in step.calls if not all(_finite(tensor) for tensor in _floats(call.output))]
        bad_grads = [name for name, size in step.grads.items() if not math.isfinite(size)]
        if not bad_losses and not bad_outputs:
            # With a loss scaler, the first gradients may overflow: the scaler starts with a high scale and lowers it.
            # Such gradients alone are no failure.
            if bad_grads and not trial.training.scales_loss:
                return self.failed(bad_grads, "the gradient holds NaN or infinity at the first step", math.nan)
            return self.passed(f"the loss and the outputs of {counted(len(step.calls), 'call')} are finite")
        inputs = [path for path, tensor in named_tensors(trial.batch) if is_float(tensor) and not _finite(tensor)]
        if inputs:
            return self.failed(inputs, "the batch holds NaN or infinity, and the loss or the outputs do too", math.nan)
        first = next((each for each in trial.step.layers if not each.is_finite and each.input_is_finite), None)
        if first is not None:
            return self.failed([first.name], "from a finite input this module makes NaN or infinity", math.nan)
        where = bad_outputs or [""]
        return self.failed(where, "the loss is not finite" if bad_losses else "the output is not finite", math.nan)


@dataclass(frozen=True, kw_only=True)
class ConstantOutput(Check):
    """Different samples get different outputs of the whole model.

    Norms normalise by the batch, as in the step: with running statistics that are still those of a fresh norm, the signal of a
    deep model vanishes in evaluation, and comes back as soon as the statistics have followed.

    Args:
        least_difference: the relative difference of two outputs from which on they differ.
    """

    least_difference: float = 1e-6
    probes: ClassVar[tuple[str, ...]] = ("calls",)
    next_steps: ClassVar[tuple[str, ...]] = (
        "Look for dead units, a softmax over a dimension of size 1, and inputs that are overwritten or not used.",
    )
    source: ClassVar[str] = "the rounding of float32 is 1e-7"
    not_shown: ClassVar[str] = "outputs that differ a little at first, and become constant while the loss does not fall"

    def run(self, trial: Trial) -> CheckResult:
        if isinstance(trial.samples, str):
            return self.skipped(trial.samples)
        count = trial.samples.size
        constant = _constant(trial.batch)
        if constant:
            return self.warned(constant, f"all {count} samples of the batch are the same")
        calls = [each for each in trial.step.calls if _is_model(each) and _differ_in(each, count)]
        judged = 0
        spreads: list[float] = []
        for call in calls:
            outputs = _batched(trial.evaluate(call, by_batch=True)[0], count)
            if not outputs:
                continue
            if not all(map(_finite, outputs)):
                return self.skipped("outputs are not finite; see NonFinite")
            judged += 1
            spread = max(map(_spread, outputs))
            spreads.append(spread)
            if spread > self.least_difference:
                continue
            trial.advance()
            later = max(map(_spread, _batched(trial.evaluate(call, from_start=False, by_batch=True)[0], count)))
            if not later > self.least_difference:
                text = f"all {count} samples get the same output, although their inputs differ"
                return self.failed([call.name], text, spread, self.least_difference)
        if not judged:
            return self.skipped("no module gives an output that has the samples in its first dimension")
        if max(spreads) <= self.least_difference:
            return self.passed("outputs are alike only because a layer begins with zeros", max(spreads), self.least_difference)
        return self.passed(
            f"the outputs of {count} samples differ, by {max(spreads):.3g} of the largest", max(spreads), self.least_difference
        )


@dataclass(frozen=True, kw_only=True)
class EvalIsDeterministic(Check):
    """In evaluation mode, a module gives the same output twice.

    Args:
        most: the relative difference that two runs on a GPU may have.
    """

    most: float = 1e-3
    probes: ClassVar[tuple[str, ...]] = ("calls",)
    next_steps: ClassVar[tuple[str, ...]] = (
        "Pass `training=self.training` to `F.dropout`, and test `self.training` before other random changes.",
    )
    source: ClassVar[str] = "kernels that add in another order differ by 1e-6 in float32, and by 1e-3 in half precision"
    consequence: ClassVar[str] = (
        "An output that changes in evaluation mode makes validation noisy, and one prediction cannot be repeated."
    )
    false_alarm: ClassVar[str] = (
        "Sampling in evaluation may be meant, as in Monte Carlo dropout or a variational model. Accept the result for that "
        "module."
    )

    def run(self, trial: Trial) -> CheckResult:
        calls = [each for each in trial.step.calls if _is_model(each)]
        if not calls:
            return self.skipped("the step calls no module of the model")
        for call in calls:
            first, _ = trial.evaluate(call)
            # The second run gets other random numbers, and the state that the first one left.
            shuffle_generators(1234)
            second, record = trial.evaluate(call, probes=("draws",), from_start=False)
            difference = _difference(first, second)
            if difference <= self.most:
                continue
            dropped = [name for function, name, _ in record.draws if function in DROPOUTS]
            if dropped:
                text = "dropout acts in evaluation mode, so that two runs differ"
                return self.failed(_known(trial, dropped), text, difference, self.most)
            masked = [name for function, name, _ in record.draws if function in _MASKS]
            functions = ", ".join(sorted({function for function, _, _ in record.draws}))
            if masked:
                return self.warned(_known(trial, masked), f"{functions} acts in evaluation mode", difference, self.most)
            noise = Noise()
            trial.evaluate(call, probes=(noise,), with_graph=True)
            if noise.was_added:
                return self.warned(
                    [call.name], f"noise of fixed size is added in evaluation mode ({functions})", difference, self.most
                )
            if record.draws:
                return self.skipped(f"the output differs from run to run, because the model draws samples ({functions})")
            return self.failed([call.name], "two runs differ, because the first one changed the model", difference, self.most)
        return self.passed(f"outputs of {counted(len(calls), 'call')} are the same twice")


def _constant(batch: Any) -> list[str]:
    """The float inputs of a batch if each is the same for all samples; masks do not count."""
    inputs = [(path, tensor) for path, tensor in named_tensors(batch) if is_float(tensor) and tensor.dim() > 1]
    inputs = [(path, tensor) for path, tensor in inputs if not bool(((tensor == 0) | (tensor == 1)).all())]
    constant = [path for path, tensor in inputs if not bool((tensor[1:] != tensor[:1]).any())]
    return constant if len(constant) == len(inputs) else []


def _known(trial: Trial, names: list[str]) -> list[str]:
    modules = {each.name for each in trial.names.modules}
    return [name if name in modules else ROOT_NAME for name in names]


def _is_model(call: Call) -> bool:
    """Whether a call is one of the model, not of a loss or a metric."""
    kinds = {kind.__name__ for kind in type(call.module).__mro__}
    return role_of(call.module) != "loss" and not {"Metric", "MetricCollection"} & kinds and call.args is not None


def _differ_in(call: Call, count: int) -> bool:
    """Whether an input of a call differs between samples."""
    tensors = [tensor for tensor in tensors_in((call.args, dict(call.kwargs))) if not kind_of(tensor)]
    inputs = [tensor for tensor in tensors if tensor.dim() and tensor.shape[0] == count]
    return any(bool((tensor[1:] != tensor[:1]).any()) for tensor in inputs)


def _batched(output: Any, count: int) -> list[Tensor]:
    return outputs_of(Call("", nn.Identity(), (), {}, output), count)


def _spread(output: Tensor) -> float:
    values = output.detach().to(torch.complex128 if output.is_complex() else torch.float64)
    size = float(values.abs().max()) if values.numel() else 0.0
    return float((values[1:] - values[:1]).abs().max()) / size if size > 0 else 0.0


def _difference(first: Any, second: Any) -> float:
    largest = 0.0
    for one, other in zip(_floats(first), _floats(second), strict=False):
        if one.shape != other.shape:
            return math.inf
        both = torch.isfinite(one) & torch.isfinite(other)
        if both.any():
            size = float(one[both].abs().max())
            largest = max(
                largest, float((one - other)[both].abs().max()) / size if size else float((one - other)[both].abs().max())
            )
    return largest


def _floats(output: Any) -> Iterator[Tensor]:
    for tensor in tensors_in(output):
        if is_float(tensor) and tensor.numel():
            yield tensor.detach()


def _finite(tensor: Tensor) -> bool:
    return bool(torch.isfinite(tensor.detach()).all())


CHECKS: Final[tuple[Check, ...]] = (NonFinite(), ConstantOutput(), EvalIsDeterministic())
"""The checks on outputs, with their defaults."""
