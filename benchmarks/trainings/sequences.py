"""Made sequences of tokens, and how well a model predicts them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.trainings.parts import margin
from benchmarks.trainings.spec import Spec


def chains(spec: Spec, purpose: str, count: int) -> Tensor:
    """Sequences of a Markov chain in which each token has few likely successors, int64 [count, length + 1]."""
    vocabulary = spec["vocabulary"]
    transition = (3 * torch.randn(vocabulary, vocabulary, generator=spec.source("chain", of_task=True))).softmax(1)
    source = spec.source(purpose, of_task=True)
    tokens = [torch.randint(vocabulary, (count,), generator=source)]
    for _ in range(spec["length"]):
        tokens.append(torch.multinomial(transition[tokens[-1]], 1, generator=source).squeeze(1))
    return torch.stack(tokens, 1)


def token_margin(logits: Tensor, targets: Tensor) -> float:
    """The share of the entropy of the tokens' frequencies that predictions have removed from the cross entropy."""
    shares = targets.flatten().bincount().double() / targets.numel()
    entropy = -(shares[shares > 0] * shares[shares > 0].log()).sum()
    return margin(functional.cross_entropy(logits.double().flatten(0, -2), targets.flatten()), entropy)
