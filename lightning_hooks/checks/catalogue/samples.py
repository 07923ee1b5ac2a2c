"""The check that no sample's output depends on other samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Final

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from typing_extensions import override

from lightning_hooks.checks.batch import changed_copy, first_samples, generator, is_float, special
from lightning_hooks.checks.catalogue.places import placed_outputs
from lightning_hooks.checks.check import Check
from lightning_hooks.checks.errors import StepError
from lightning_hooks.checks.probes.graph import GraphProbe
from lightning_hooks.checks.recorder import Recorder
from lightning_hooks.checks.result import CheckResult
from lightning_hooks.checks.trial import Trial, outputs_of
from lightning_hooks.errors import listed
from lightning_hooks.nested.tensors import tensors_of

_FEW: Final = 3
"""Samples of the batch that the check trains; a number that is hardly the size of another dimension."""


@dataclass(frozen=True, kw_only=True)
class SamplesAreIndependent(Check):
    """The gradient of a sample's output with respect to the other samples' inputs is 0.

    Batch norms are in evaluation mode for this check, because in training they mix samples on purpose. A loss that compares
    samples with each other, such as a contrastive one, is named and does not fail. Neither do samples that the step mixes
    before it calls the model, as mixup does, nor nodes of a graph whose adjacency matrix is a buffer. It warns where no sample
    depends on another, but on its own place in the batch, as where an encoding of positions is added along the batch.

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

    def run(self, trial: Trial) -> CheckResult:
        samples = trial.samples
        if isinstance(samples, str):
            return self.skipped(samples)
        given = [call.name for call in trial.step.calls if special((call.args, dict(call.kwargs)))]
        if given:
            return self.skipped(f"{given[0]} gets a sparse or nested tensor, which may relate the samples with each other")
        sequence_first = [] if samples.is_sure else _sequence_first(trial)
        if sequence_first:
            return self.skipped(
                f"it is not known which dimension holds the samples: {listed(sequence_first, 2)} has batch_first=False"
            )
        batches = _few_samples(trial, samples.size)
        try:
            found = _Mixing(self.most).run(trial, batches[0])
            if found.of_mixing and len(batches) > 1:
                # A number of rows that a router chose may be that of the samples by chance, but hardly for two numbers.
                found = found.common(_Mixing(self.most).run(trial, batches[1]))
        except StepError:
            # `batches` are of another size, and some models take batches of one size only: try the given size.
            found = _Mixing(self.most).run(trial, (trial.batch, samples.size))
        norms = f"; batch norms mix samples in training on purpose: {listed(trial.batch_norms, 2)}" if trial.batch_norms else ""
        if not found.shares and not all(map(math.isfinite, trial.step.losses)):
            return self.skipped("the loss is not finite; see NonFinite")
        if not found.shares:
            return self.skipped("no output with the samples in its first dimension depends on the inputs by a gradient")
        if not found.of_mixing or found.shares.get("", math.inf) <= self.most:
            for name, share in placed_outputs(trial, samples.size) if samples.is_sure else ():
                return self.warned([name], "the output of a sample depends on its place in the batch", share)
            return self.passed(f"no output depends on other samples{norms}", found.shares.get("", 0.0), self.most)
        if found.of_mixing <= found.compares:
            return self.passed(
                f"scores of pairs of samples are the only numbers that depend on several, as contrastive losses have{norms}"
            )
        mixing = [name for name in found.of_mixing if name and name not in found.compares]
        if not mixing:
            text = "the step mixes samples between the output of the model and the loss"
            return self.failed([""], text, found.shares[""], self.most)
        unnormed = [name for name in trial.batch_norms if _has_no_statistics(trial.module(name))]
        if unnormed:
            return self.skipped(f"{listed(unnormed, 2)} mixes samples: it keeps no statistics")
        related = [name for name, buffer in trial.model.named_buffers() if buffer.shape[:2] == (samples.size, samples.size)]
        if related:
            return self.skipped(f"{listed(related, 2)} relates the samples with each other, as an adjacency matrix does")
        if _comes_mixed(trial, found, samples.size, self.most):
            return self.passed(
                f"the step mixes samples before it calls the model, as mixup does, and the model does not{norms}"
            )
        if not samples.is_sure and found.is_independent_in_second:
            return self.skipped("the samples seem to lie in the second dimension, in which no output depends on another")
        first = self._first(trial, batches)
        text = "the output of a sample depends on the inputs of other samples"
        return self.failed([first or mixing[0]], text, found.shares[mixing[0]], self.most)

    def _first(self, trial: Trial, batches: Sequence[tuple[Any, int]]) -> str:
        """The first module whose output mixes samples; empty if none does by itself."""
        try:
            found = [_Mixing(self.most, every_output=True).run(trial, batch) for batch in batches]
        except StepError:
            return ""
        order = [name for name in found[0].shares if name in found[0].of_mixing]
        return next((name for name in order if name and all(name in each.of_mixing for each in found)), "")


def _few_samples(trial: Trial, count: int) -> list[tuple[Any, int]]:
    """Parts of the batch with two numbers of samples, as far as it has these."""
    sizes = dict.fromkeys((min(_FEW, count), min(_FEW + 2, count) if count > _FEW else 2))
    return [(first_samples(trial.batch, count, size), size) for size in sizes]


class _Mixing(GraphProbe):
    """Measures during a step how much the outputs of a sample depend on other samples.

    Args:
        most: the share above which an output mixes samples.
        every_output: as of `GraphProbe`.

    Attributes:
        shares: by the name of the module, in the order in which they finish; the input of the loss has an empty name.
        compares: the names of outputs that have a number for each pair of samples.
        is_independent_in_second: whether no mixing output depends on other places of the second dimension.
    """

    def __init__(self, most: float, *, every_output: bool = False) -> None:
        super().__init__(every_output=every_output)
        self.most, self.samples = most, 0
        self.shares: dict[str, float] = {}
        self.compares: set[str] = set()
        self.is_independent_in_second = False
        self._roots: list[Tensor] = []

    @property
    def of_mixing(self) -> set[str]:
        return {name for name, share in self.shares.items() if share > self.most}

    def common(self, other: _Mixing) -> _Mixing:
        """The measurement of what both measurements show: the smaller share of each module, the comparisons of both."""
        result = _Mixing(self.most)
        names = [name for name in self.shares if name in other.shares]
        result.shares = {name: min(self.shares[name], other.shares[name]) for name in names}
        result.compares = self.compares & other.compares
        result.is_independent_in_second = self.is_independent_in_second and other.is_independent_in_second
        return result

    def run(self, trial: Trial, batch: tuple[Any, int]) -> _Mixing:
        """Run a step on a batch with so many samples, with batch norms in evaluation mode."""
        given, self.samples = batch
        trial.run(probes=("input_grads", self), batch=given, before=_without_norms)
        self._roots.clear()
        return self

    @override
    def begin(self, recorder: Recorder) -> None:
        super().begin(recorder)
        self._roots = [tensor for tensor in tensors_of(recorder.batch) if is_float(tensor)]

    @override
    def on_embedding(self, indices: Tensor, vectors: Tensor) -> None:
        self._roots.append(vectors)

    @override
    def on_output(self, name: str, output: Tensor) -> None:
        rows = output.shape[0] if output.dim() else 0
        if not is_float(output) or not rows or rows % self.samples or not bool(torch.isfinite(output).all()):
            return
        roots = [root for root in self._roots if root.dim() and root.shape[0] == self.samples and root is not output]
        share = min((self._share(each, roots) for each in _groupings(output, self.samples)), default=-1.0)
        if share < 0:
            return
        if share > self.most:
            if output.dim() == 2 and output.shape[1] % self.samples == 0:
                self.compares.add(name)
            elif output.dim() > 1 and output.shape[1] > 1:
                self.is_independent_in_second = self._is_independent(output, roots)
        self.shares[name] = max(share, self.shares.get(name, 0.0))

    def _is_independent(self, output: Tensor, roots: Sequence[Tensor]) -> bool:
        grads = _gradients(output[:, 0], [root for root in roots if root.dim() > 1 and root.shape[1] == output.shape[1]])
        pairs = [(grad[:, 0], grad[:, 1:]) for grad in grads]
        own = max((float(one.abs().max()) for one, _ in pairs if one.numel()), default=0.0)
        other = max((float(rest.abs().max()) for _, rest in pairs if rest.numel()), default=0.0)
        return own > 0 and other <= 1e-5 * own

    def _share(self, rows: Tensor, roots: Sequence[Tensor]) -> float:
        """The largest gradient with respect to other samples over that to the sample itself; -1 if there is none."""
        worst = -1.0
        for i in (0, self.samples - 1):
            own = other = 0.0
            for grad in _gradients(rows[i], roots):
                sizes = torch.nan_to_num(grad.reshape(self.samples, -1).abs()).amax(1)
                own = max(own, float(sizes[i]))
                other = max(other, float(torch.cat([sizes[:i], sizes[i + 1 :]]).max()))
            if own > 0 or other > 0:
                worst = max(worst, other / max(own, 1e-30))
        return worst


def _groupings(output: Tensor, samples: int) -> list[Tensor]:
    """The output with one row for each sample; of several rows for each, both orders that are usual."""
    copies = output.shape[0] // samples
    if copies == 1:
        return [output.reshape(samples, -1)]
    return [output.reshape(samples, -1), output.reshape(copies, samples, -1).transpose(0, 1).reshape(samples, -1)]


def _gradients(row: Tensor, roots: Sequence[Tensor]) -> list[Tensor]:
    """The gradients of a random sum of the numbers of one sample; a plain sum would hide a softmax."""
    if not roots or not row.requires_grad:
        return []
    weights = (
        torch.rand(row.shape, generator=generator(7)).to(row.device, row.real.dtype if row.is_complex() else row.dtype) + 0.5
    )
    total = (row.abs() if row.is_complex() else row).mul(weights).sum()
    found = torch.autograd.grad(total, list(roots), retain_graph=True, allow_unused=True)
    return [each.detach() for each in found if each is not None]


def _comes_mixed(trial: Trial, found: _Mixing, count: int, most: float) -> bool:
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


def _sequence_first(trial: Trial) -> list[str]:
    return [each.name for each in trial.names.modules if getattr(each.value, "batch_first", None) is False]


def _has_no_statistics(module: nn.Module | None) -> bool:
    return isinstance(module, _BatchNorm) and not module.track_running_stats


def _without_norms(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, _BatchNorm):
            module.eval()


CHECKS: Final[tuple[Check, ...]] = (SamplesAreIndependent(),)
"""The check on samples, with its defaults."""
