"""The check that no sample's output depends on other samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Final

import torch
from torch import Tensor

from lightning_hooks.checks.batch import Samples, changed_copy, first_samples, special
from lightning_hooks.checks.catalogue.mixing import Mixing
from lightning_hooks.checks.catalogue.places import ROUNDING, place_shares
from lightning_hooks.checks.check import Check
from lightning_hooks.checks.errors import StepError
from lightning_hooks.checks.result import CheckResult
from lightning_hooks.checks.trial import FEW_SAMPLES, Trial, outputs_of
from lightning_hooks.errors import listed


@dataclass(frozen=True, kw_only=True)
class SamplesAreIndependent(Check):
    """The gradient of a sample's output with respect to the other samples' inputs is 0.

    Batch norms are in evaluation mode for this check, because in training they mix samples on purpose. A loss that compares
    samples with each other, such as a contrastive one, is named and does not fail. Neither do samples that the step mixes
    before it calls the model, as mixup does. Nodes of a graph, which a constant relates with each other, an adjacency matrix or
    edges, are skipped. It warns where no sample depends on another, but on its own place in the batch, as where an encoding of
    positions is added along the batch.

    Args:
        most: the largest gradient with respect to other samples, as a share of that with respect to the sample itself.
    """

    most: float = 1e-5
    probes: ClassVar[tuple[str, ...]] = ("losses", "calls")
    next_steps: ClassVar[tuple[str, ...]] = (
        "Look for `view` or `reshape` where `permute` is meant, and for a softmax, mean or norm over dimension 0.",
        "Look at `batch_first` of attention and recurrent layers.",
    )
    source: ClassVar[str] = "a definition: without a path from one sample to another the gradient is exactly 0"
    consequence: ClassVar[str] = (
        "A sample that sees the others of its batch learns from what it will not have in use, and predictions depend on the "
        "batch."
    )
    false_alarm: ClassVar[str] = (
        "A loss that compares samples on purpose is named and does not fail. Accept the result for a layer of your own that "
        "mixes samples."
    )

    def run(self, trial: Trial) -> CheckResult:
        samples = trial.samples
        if isinstance(samples, str):
            return self.skipped(samples)
        given = [call.name for call in trial.step.calls if special((call.args, dict(call.kwargs)))]
        if given:
            return self.skipped(f"{given[0]} gets a sparse or nested tensor, which may relate the samples with each other")
        batches = _few_samples(trial, samples.size)
        try:
            found = Mixing(self.most).run(trial, batches[0])
            if found.of_mixing and len(batches) > 1:
                # A number of rows that a router chose may be that of the samples by chance, but hardly for two numbers.
                found = found.common(Mixing(self.most).run(trial, batches[1]))
        except StepError:
            # Some models take batches of one size only: try the given size.
            batches = [(trial.batch, samples.size)]
            found = Mixing(self.most).run(trial, batches[0])
        norms = (
            f"; batch norms mix samples in training on purpose: {listed([*trial.batch_norms], 2)}" if trial.batch_norms else ""
        )
        if not found.shares and not all(map(math.isfinite, trial.step.losses)):
            return self.skipped("the loss is not finite; see NonFinite")
        if not found.shares:
            return self.skipped("no output with the samples in its first dimension depends on the inputs by a gradient")
        if not found.of_mixing or found.shares.get("", math.inf) <= self.most:
            for name, share in place_shares(trial, samples.size) if samples.is_sure else ():
                if share > ROUNDING:
                    return self.warned([name], "the output of a sample depends on its place in the batch", share)
            return self.passed(f"no output depends on other samples{norms}", found.shares.get("", 0.0), self.most)
        if found.of_mixing <= found.compares:
            return self.passed(
                f"scores of pairs of samples are the only numbers that depend on several, as contrastive losses have{norms}"
            )
        reason = self._why_meant(trial, found, samples)
        if reason:
            return self.skipped(reason)
        mixing = [name for name in found.shares if name in found.of_mixing and name and name not in found.compares]
        if not mixing:
            text = "the step mixes samples between the output of the model and the loss"
            return self.failed([""], text, found.shares[""], self.most)
        if _comes_mixed(trial, found, samples.size, self.most):
            return self.passed(
                f"the step mixes samples before it calls the model, as mixup does, and the model does not{norms}"
            )
        first = self._first(trial, batches)
        text = "the output of a sample depends on the inputs of other samples"
        advice = self.next_steps if _sequence_first(trial) else self.next_steps[:1]
        return self.failed([first or mixing[0]], text, found.shares[mixing[0]], self.most, next_steps=advice)

    def _why_meant(self, trial: Trial, found: Mixing, samples: Samples) -> str:
        """Why outputs that depend on other rows may be meant, as a clause; empty if nothing says so."""
        unnormed = [name for name, norm in trial.batch_norms.items() if not norm.track_running_stats]
        if unnormed:
            return f"{listed(unnormed, 2)} mixes samples: it keeps no statistics"
        related = [name for name, buffer in trial.model.named_buffers() if buffer.shape[:2] == (samples.size, samples.size)]
        if related or found.relation:
            return f"{listed(related, 2) or found.relation} relates the samples with each other, as an adjacency matrix does"
        if samples.is_sure:
            return ""
        sequence_first = _sequence_first(trial)
        if sequence_first:
            # Of rows that nothing but their numbers tells apart, an order means nothing: they are no positions of a sequence.
            shares = [share for _, share in place_shares(trial, samples.size)]
            if not shares or max(shares) > ROUNDING:
                return f"it is not known which dimension holds the samples: {listed(sequence_first, 2)} has batch_first=False"
        elif found.is_independent_in_second:
            return "the samples seem to lie in the second dimension, in which no output depends on another"
        return ""

    def _first(self, trial: Trial, batches: Sequence[tuple[Any, int]]) -> str:
        """The first module whose output mixes samples; empty if none does by itself."""
        try:
            found = [Mixing(self.most, every_output=True).run(trial, batch) for batch in batches]
        except StepError:
            return ""
        order = [name for name in found[0].shares if name in found[0].of_mixing]
        return next((name for name in order if name and all(name in each.of_mixing for each in found)), "")


def _sequence_first(trial: Trial) -> list[str]:
    """The layers that expect the positions of a sequence in the first dimension."""
    return [each.name for each in trial.names.modules if getattr(each.value, "batch_first", None) is False]


def _few_samples(trial: Trial, count: int) -> list[tuple[Any, int]]:
    """Parts of the batch with two numbers of samples, as far as it has these."""
    sizes = dict.fromkeys((min(FEW_SAMPLES, count), min(FEW_SAMPLES + 2, count) if count > FEW_SAMPLES else 2))
    return [(first_samples(trial.batch, count, size), size) for size in sizes]


def _comes_mixed(trial: Trial, found: Mixing, count: int, most: float) -> bool:
    """Whether the first module that the step calls gets mixed samples, and does not mix them itself."""
    first = next((call for call in trial.step.calls if call.name in found.shares), None)
    if first is None or first.name not in found.of_mixing:
        return False
    before = outputs_of(replace(first, output=trial.evaluate(first)[0]), count)
    # A recurrent layer carries numbers in one direction only, so both ends are tried.
    for sample in (0, count - 1):
        args, kwargs = (
            changed_copy(given, partial(_with_another, sample, count)) for given in (first.args, dict(first.kwargs))
        )
        output = trial.evaluate(replace(first, args=args, kwargs=kwargs))[0]
        changes = [one - other for one, other in zip(before, outputs_of(replace(first, output=output), count), strict=False)]
        own = max((float(change[sample].abs().max()) for change in changes), default=0.0)
        others = [torch.cat([change[:sample], change[sample + 1 :]]).abs().max() for change in changes]
        if own == 0 or any(float(other) > most * own for other in others):
            return False
    return True


def _with_another(sample: int, count: int, _: str, tensor: Tensor) -> Tensor:
    """A copy of a tensor in which one sample has the numbers of another."""
    copy = tensor.detach().clone()
    if copy.dim() and copy.shape[0] == count:
        copy[sample] = copy[sample - 1]
    return copy


CHECKS: Final[tuple[Check, ...]] = (SamplesAreIndependent(),)
"""The check on samples, with its defaults."""
