"""The check that a model of sequences does not see the tokens that it is to predict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final

import torch
from torch import Tensor
from typing_extensions import override

from lightning_hooks.checks.batch import generator
from lightning_hooks.checks.check import Check
from lightning_hooks.checks.losses import CROSS_ENTROPY, NLL, LossCall
from lightning_hooks.checks.probes.graph import GraphProbe
from lightning_hooks.checks.result import CheckResult
from lightning_hooks.checks.trial import Trial
from lightning_hooks.nested.tensors import tensors_of

_OTHERS: Final = "the labels are not the tokens of the next positions"
_SHIFT: Final = ("Shift the labels by one position: give the model `tokens[:, :-1]`, and the loss `tokens[:, 1:]`.",)


@dataclass(frozen=True, kw_only=True)
class FutureIsHidden(Check):
    """Where the labels are the tokens of the next position, no output depends on later tokens.

    It warns where the labels are the given tokens of the same positions and outputs depend on their own token, but on no later
    one. Nothing shifts the labels then, and each is visible at its own position. A model that sees all tokens may be an
    autoencoder, and one whose outputs do not depend on their own token shifts its hidden vectors.

    Args:
        most: the largest gradient with respect to later tokens, as a share of that with respect to earlier ones.
    """

    most: float = 1e-5
    probes: ClassVar[tuple[str, ...]] = ("loss_calls",)
    next_steps: ClassVar[tuple[str, ...]] = (
        "Give attention a causal mask, pad convolutions on the left only, and normalise over features, not over positions.",
    )
    source: ClassVar[str] = "a definition: without a path from a later token the gradient is exactly 0"
    consequence: ClassVar[str] = (
        "A language model that sees the next token copies it. Its training loss falls quickly, and generation is useless."
    )
    false_alarm: ClassVar[str] = (
        "A model that fills gaps in both directions sees later tokens on purpose. Then the labels are usually masked; else "
        "accept the result."
    )

    def run(self, trial: Trial) -> CheckResult:
        tokens, is_shifted = _predicted_tokens(trial)
        if tokens is None:
            return self.skipped(_OTHERS)
        found = _Leak(tokens)
        trial.run(probes=(found,))
        if not found.roots and not is_shifted:
            # The labels of the batch are their own tokens, which the model does not get.
            return self.skipped(_OTHERS)
        if len(found.roots) != 1:
            return self.skipped("the vectors of the tokens are not those of one embedding")
        if not found.shares:
            return self.skipped("no output with the positions in its second dimension depends on the tokens by a gradient")
        share = found.shares.get("", max(found.shares.values()))
        if not is_shifted and share > self.most:
            return self.skipped("the labels are the given tokens, which an autoencoder learns from all of them")
        if not is_shifted and "" not in found.owns:
            return self.skipped("the input of the loss has no positions in which it depends on the tokens by a gradient")
        if not is_shifted and found.owns[""] <= self.most:
            text = "no output depends on the token of its own position, or on a later one"
            return self.passed(text, found.owns[""], self.most)
        if not is_shifted:
            text = "the labels equal the given tokens of the same positions, because nothing shifts them"
            return self.warned([row for row in found.shares if row][:1], text, share, self.most, next_steps=_SHIFT)
        if share <= self.most:
            return self.passed("no output depends on later tokens", share, self.most)
        within = _Leak(tokens, every_output=True)
        trial.run(probes=(within,))
        rows = [name for name, size in within.shares.items() if size > self.most]
        text = "the output of a position depends on later tokens, which are its label"
        return self.failed(rows[:1], text, share, self.most)


def _predicted_tokens(trial: Trial) -> tuple[Tensor | None, bool]:
    """The tokens [samples, positions] that are labels, and whether the labels are those of the next positions."""
    inputs = [each for each in tensors_of(trial.batch) if each.dim() == 2 and each.dtype in (torch.long, torch.int)]
    calls = [call for call in trial.step.loss_calls if call.function in (CROSS_ENTROPY, NLL) and call.has_indices]
    for tokens in inputs:
        if any(_are_labels(tokens, call, 1) for call in calls):
            return tokens, True
    for tokens in inputs:
        if any(_are_labels(tokens, call, 0) for call in calls):
            return tokens, False
    return None, False


def _are_labels(tokens: Tensor, call: LossCall, shift: int) -> bool:
    """Whether all labels that count are the tokens so many positions later."""
    samples, length = tokens.shape
    # A sequence of one token shows no order.
    is_varied = bool((tokens[:, 1:] != tokens[:, :-1]).any())
    if length < 4 or not is_varied or call.target.numel() not in (samples * length, samples * (length - shift)):
        return False
    aligned = call.target.reshape(samples, -1)[:, : length - shift]
    counted = aligned != call.options.get("ignore_index", -100)
    return bool(counted.any()) and bool((aligned == tokens[:, shift:])[counted].all())


class _Leak(GraphProbe):
    """Measures how much the output of a position depends on later tokens.

    Args:
        tokens: of the batch, [samples, positions].
        every_output: as of `GraphProbe`.

    Attributes:
        roots: the vectors of the tokens, of each embedding.
        shares: by the name of the module, the largest gradient to later tokens over that to the others; the input of the loss
            has an empty name.
        owns: by the name of the module, the largest gradient to the token of the same position over that to earlier ones.
    """

    def __init__(self, tokens: Tensor, *, every_output: bool = False) -> None:
        super().__init__(every_output=every_output)
        self.tokens = tokens
        self.roots: list[Tensor] = []
        self.shares: dict[str, float] = {}
        self.owns: dict[str, float] = {}

    @override
    def on_embedding(self, indices: Tensor, vectors: Tensor) -> None:
        """Keep the vectors of the tokens."""
        length = indices.shape[1] if indices.dim() == 2 else 0
        if length >= self.tokens.shape[1] - 1 and indices.shape[0] == self.tokens.shape[0]:
            if torch.equal(indices, self.tokens[:, :length].to(indices)):
                self.roots.append(vectors)

    @override
    def on_output(self, name: str, output: Tensor) -> None:
        """Compare the gradients of a position in the middle with respect to earlier and later tokens."""
        if len(self.roots) != 1 or not output.requires_grad or output is self.roots[0]:
            return
        samples, length = self.roots[0].shape[:2]
        place = length // 2
        at = _at(output, samples, length, place)
        if at is None or not bool(torch.isfinite(at).all()):
            return
        weights = torch.rand(at.shape, generator=generator(7)).to(at) + 0.5
        found: Any = torch.autograd.grad((at * weights).sum(), self.roots, retain_graph=True, allow_unused=True)
        if found[0] is None:
            return
        sizes = torch.nan_to_num(found[0].detach().abs()).amax(dim=(0, 2))
        before, own, later = float(sizes[:place].max()), float(sizes[place]), float(sizes[place + 1 :].max())
        if max(before, own, later) > 0:
            self.shares[name] = max(later / max(before, own, 1e-30), self.shares.get(name, 0.0))
            self.owns[name] = max(own / max(before, 1e-30), self.owns.get(name, 0.0))


def _at(output: Tensor, samples: int, length: int, place: int) -> Tensor | None:
    """The part of an output that belongs to a position; None if the output has no positions."""
    shape = tuple(output.shape)
    if shape[:2] == (samples, length) and output.dim() > 2:
        return output[:, place]
    for used in (length, length - 1):
        if output.dim() == 2 and shape[0] == samples * used:
            return output.reshape(samples, used, -1)[:, place]
        if output.dim() == 3 and shape[0] == samples and shape[2] == used:
            return output[:, :, place]
    return None


CHECKS: Final[tuple[Check, ...]] = (FutureIsHidden(),)
"""The check on sequences, with its defaults."""
