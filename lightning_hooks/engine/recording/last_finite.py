"""The last step after whose update a parameter was measured as finite."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.optim import Optimizer


class LastFinite:
    """Remembers which parameters were measured after the last good update of each optimizer.

    Example:
        >>> import torch
        >>> weight, frozen = torch.ones(1, requires_grad=True), torch.ones(1)
        >>> last = LastFinite()
        >>> last.note(torch.optim.SGD([weight], 0.1), [weight], step=7)
        >>> last.step_of(weight), last.step_of(frozen)
        (7, None)
    """

    def __init__(self) -> None:
        self._measured: dict[int, tuple[int, Sequence[Tensor]]] = {}

    def note(self, optimizer: Optimizer, parameters: Sequence[Tensor], step: int) -> None:
        """Note that all parameters of an optimizer were finite after its update in a step."""
        self._measured[id(optimizer)] = step, parameters

    def step_of(self, tensor: Tensor | None) -> int | None:
        """The last step after whose update a tensor was finite; None if it was never measured after an update."""
        steps = [step for step, parameters in self._measured.values() if any(each is tensor for each in parameters)]
        return max(steps, default=None)
