"""A place that a model marks for rules to name."""

from __future__ import annotations

from typing import TypeVar

from torch import nn

T = TypeVar("T")


class HookPoint(nn.Module):
    """Return what it is given, so that an intermediate tensor has a name which patterns can reach.

    It holds nothing and computes nothing; without rules that match it, a model with it trains as one without.

    Example:
        >>> import torch
        >>> class Scores(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.scores = HookPoint()
        ...     def forward(self, q, k):
        ...         return self.scores(q @ k.T).softmax(-1)
        >>> Scores()(torch.ones(1, 2), torch.ones(1, 2))
        tensor([[1.]])
    """

    def forward(self, x: T) -> T:
        """The argument itself."""
        return x
