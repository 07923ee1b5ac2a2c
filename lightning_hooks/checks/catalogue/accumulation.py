"""The check that the gradients of several batches add up to those of the same samples as one batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import torch
from torch import Tensor, nn
from torch.optim import SGD
from typing_extensions import override

from lightning_hooks.checks.batch import first_samples, some_samples
from lightning_hooks.checks.check import Check
from lightning_hooks.checks.probes.probe import Probe
from lightning_hooks.checks.result import CheckResult
from lightning_hooks.checks.trial import Trial
from lightning_hooks.engine.plain_loop.found_losses import divisor_of
from lightning_hooks.rules.patterns import Target


@dataclass(frozen=True, kw_only=True)
class AccumulationNotDivided(Check):
    """The gradients of the batches that are accumulated for a step are those of the same samples as one batch.

    The batch is cut into as many parts as batches are accumulated, and the step runs on each of them and on all samples, with
    the model in evaluation mode, because dropout and batch norms give each part other numbers on purpose. A loss that is
    divided by the number of batches is compared with the undivided loss of all samples. As in the health rule, gradients that
    are a multiple of the right ones are a fault of `SGD` only: other optimizers divide them by their size.

    Args:
        most: the largest difference, as a share of the gradients.
    """

    most: float = 0.05
    probes: ClassVar[tuple[str, ...]] = ("losses", "draws")
    not_shown: ClassVar[str] = "what manual optimization does with the loss"
    next_steps: ClassVar[tuple[str, ...]] = (
        "Divide each loss by the number of batches that are accumulated, once.",
        "If the loss is a mean over a number of elements that varies, such as tokens that are no padding, divide its sum by "
        "the number of these elements in all batches of the step.",
    )
    source: ClassVar[str] = "a definition; 5 % leave room for the rounding of bfloat16"
    consequence: ClassVar[str] = (
        "A step is a multiple or a part of that with one large batch, or weighs samples otherwise, so that the learning rate "
        "of the large batch does not fit."
    )
    false_alarm: ClassVar[str] = (
        "A learning rate that was chosen for the sum is right with the sum. A loss that compares the samples of a batch is "
        "another one for parts of it on purpose. Accept the result in these cases."
    )

    def run(self, trial: Trial) -> CheckResult:
        count = trial.training.accumulates
        if count is None:
            return self.skipped("in manual optimization it is not known how many batches are accumulated")
        if count == 1:
            return self.passed("each batch is a step of its own, so that nothing is accumulated")
        samples = trial.samples
        if isinstance(samples, str):
            return self.skipped(samples)
        if samples.size < count:
            return self.skipped(f"the batch has {samples.size} samples, and {count} batches are accumulated")
        if trial.training.scales_loss:
            return self.skipped("a loss scaler multiplies the loss")
        size = samples.size // count
        whole = self._gradients(trial, first_samples(trial.batch, samples.size, count * size))
        parts = [
            self._gradients(trial, some_samples(trial.batch, samples.size, slice(begin, begin + size)))
            for begin in range(0, count * size, size)
        ]
        reason = next((each.reason for each in (whole, *parts) if each.reason), "")
        if reason:
            return self.skipped(reason)
        divisor = count if whole.divisor == count else 1
        found = _Compared(whole.sums, [each.sums for each in parts], divisor, count if trial.training.divides else 1)
        if not found.is_finite:
            return self.skipped("all gradients are 0, or one is not finite; see NonFinite and NoGradient")
        return self._judged(trial, found, count, divisor)

    def _gradients(self, trial: Trial, batch: Any) -> _Gradients:
        probe = _Gradients(trial.trainable)
        record = trial.run(probes=("losses", "draws", probe), batch=batch, before=_evaluate)
        if len(record.losses) != 1:
            probe.reason = f"a step has {len(record.losses)} losses, and it is not known how they belong together"
        elif record.draws:
            probe.reason = f"the step draws random numbers ({record.draws[0][0]}), which differ between batches"
        return probe

    def _judged(self, trial: Trial, found: _Compared, count: int, divisor: int) -> CheckResult:
        of = f"the gradients of {count} batches, added up, "
        if found.rest > self.most:
            text = (
                f"{of}are not a multiple of those of the same samples as one batch: {100 * found.rest:.2g} % of them point "
                "elsewhere"
            )
            return self.warned([""], text, found.rest, self.most, next_steps=self.next_steps[1:])
        if abs(found.ratio - 1) <= self.most:
            return self.passed(f"{of}are those of the same samples as one batch", abs(found.ratio - 1), self.most)
        text = f"{of}are {found.ratio:.3g} times those of the same samples as one batch"
        if trial.optimizers and not any(isinstance(each, SGD) for each in trial.optimizers):
            kind = type(trial.optimizers[0]).__name__
            return self.passed(f"{text}, which {kind} divides by their size", found.ratio)
        divides = trial.training.divides
        if found.ratio > 1:
            why = f"nothing divides their losses by {count}"
        elif divisor == count and divides:
            why = f"the step divides its loss by {count}, and the Trainer does so again"
        elif divides:
            why = f"the loss is a sum over samples, which the Trainer divides by {count}"
        else:
            why = "their losses are divided by more than their number"
        return self.warned([""], f"{text}, because {why}", found.ratio, 1.0, next_steps=self.next_steps[:1])


class _Gradients(Probe):
    """Keeps the gradients of a step, and the number by which the last operation divides its loss.

    Args:
        trainable: the parameters.

    Attributes:
        sums: the gradients by the name of the parameter, after the last backward.
        divisor: 1 if nothing divides.
        reason: why they cannot be compared; empty if they can.
    """

    def __init__(self, trainable: Sequence[Target[nn.Parameter]]) -> None:
        self._trainable = trainable
        self.sums: dict[str, Tensor] = {}
        self.divisor, self.reason = 1, ""

    @override
    def before_function(self, name: str, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        if function is Tensor.backward and args and args[0].grad_fn is not None:
            self.divisor = divisor_of(args[0])

    @override
    def after_backward(self, loss: Tensor) -> None:
        for each in self._trainable:
            gradient = each.value.grad
            if gradient is not None and gradient.layout == torch.strided:
                self.sums[each.name] = gradient.detach().double().clone()


class _Compared:
    """Gradients of parts beside those of the whole.

    Args:
        whole: of all samples, by parameter.
        parts: of each part.
        undivided: by what the gradients of the whole are multiplied.
        divided: by what a Trainer divides those of the parts.

    Attributes:
        ratio: how many times the gradients of the whole the sum of the parts is.
        rest: the share of the sum that is no multiple of them.
        is_finite: whether both are finite and not 0.
    """

    def __init__(
        self, whole: Mapping[str, Tensor], parts: Sequence[Mapping[str, Tensor]], undivided: int, divided: int
    ) -> None:
        dot = square = own = 0.0
        for name, gradient in whole.items():
            wanted = undivided * gradient
            total = torch.stack([each.get(name, torch.zeros_like(gradient)) for each in parts]).sum(0) / divided
            dot += float((wanted * total).sum())
            square += float(wanted.square().sum())
            own += float(total.square().sum())
        self.is_finite = 0 < square < float("inf") and 0 < own < float("inf")
        self.ratio = dot / square if self.is_finite else 0.0
        self.rest = max(0.0, 1 - dot * dot / (square * own)) ** 0.5 if self.is_finite else 0.0


def _evaluate(model: nn.Module) -> None:
    model.eval()


CHECKS: Final[tuple[Check, ...]] = (AccumulationNotDivided(),)
"""The check, with its defaults."""
