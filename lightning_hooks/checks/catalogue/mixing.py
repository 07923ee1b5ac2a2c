"""How much the outputs of a sample depend on other samples, measured during a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from lightning_hooks.checks.batch import generator, is_float
from lightning_hooks.checks.probes.graph import GraphProbe
from lightning_hooks.checks.probes.relations import Relations
from lightning_hooks.checks.recorder import Recorder
from lightning_hooks.checks.trial import Trial
from lightning_hooks.nested.tensors import tensors_of


class Mixing(GraphProbe):
    """Measures during a step how much the outputs of a sample depend on other samples.

    Args:
        most: the share above which an output mixes samples.
        every_output: as of `GraphProbe`.

    Attributes:
        shares: by the name of the module, in the order in which they finish; the input of the loss has an empty name.
        compares: the names of outputs that have a number for each pair of samples.
        is_independent_in_second: whether no mixing output depends on other places of the second dimension.
        relation: what relates the samples with each other from outside the step, as an adjacency matrix does; empty if nothing.
    """

    def __init__(self, most: float, *, every_output: bool = False) -> None:
        super().__init__(every_output=every_output)
        self.most, self.samples = most, 0
        self.shares: dict[str, float] = {}
        self.compares: set[str] = set()
        self.is_independent_in_second = False
        self.relation = ""
        self._roots: list[Tensor] = []

    @property
    def of_mixing(self) -> set[str]:
        return {name for name, share in self.shares.items() if share > self.most}

    def common(self, other: Mixing) -> Mixing:
        """The measurement of what both measurements show: the smaller share of each module, the comparisons of both."""
        result = Mixing(self.most)
        names = [name for name in self.shares if name in other.shares]
        result.shares = {name: min(self.shares[name], other.shares[name]) for name in names}
        result.compares = self.compares & other.compares
        result.is_independent_in_second = self.is_independent_in_second and other.is_independent_in_second
        result.relation = self.relation and other.relation
        return result

    def run(self, trial: Trial, batch: tuple[Any, int]) -> Mixing:
        """Run a step on a batch with so many samples, with batch norms in evaluation mode."""
        given, self.samples = batch
        relations = Relations(self.samples)

        def freeze_norms(_: nn.Module) -> None:
            for norm in trial.batch_norms.values():
                norm.eval()

        trial.run(probes=("input_grads", self, relations), batch=given, before=freeze_norms)
        self._roots.clear()
        self.relation = relations.found
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
