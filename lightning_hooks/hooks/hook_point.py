"""`HookPoint`: a module that gives an intermediate tensor a name."""

from __future__ import annotations

from typing import TypeVar

from torch import nn

T = TypeVar("T")


class HookPoint(nn.Module):
    """Return the input unchanged; rules can select the tensor by the name of this module.

    It has no parameters and computes nothing. Without a rule that matches it, training is unchanged.

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
        """Return the argument itself."""
        return x
