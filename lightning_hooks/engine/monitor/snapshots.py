"""What parameters were before an update."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor, nn

from lightning_hooks.engine.monitor.param_rows import are_same
from lightning_hooks.stats import kernels


class _Kept(NamedTuple):
    """The copies of one owner.

    Args:
        parameters: of which they were taken last.
        copies: in the same order.
        every: all copies that there are, by the ids of parameters.
    """

    parameters: list[nn.Parameter]
    copies: list[Tensor]
    every: dict[int, Tensor]


class Snapshots:
    """Copies of parameters, in memory that is kept from one watched step to the next.

    Memory that is new in every step costs more than the copying: the system hands it out page by page. What is not in the
    memory of this machine is copied anew each time, as its allocator keeps memory by itself; so is what is no plain tensor.

    Example:
        >>> import torch
        >>> weight = nn.Parameter(torch.ones(2))
        >>> kept = Snapshots()
        >>> kept.take(0, [weight])[id(weight)].tolist()
        [1.0, 1.0]
    """

    def __init__(self) -> None:
        self._kept: dict[int, _Kept] = {}

    def take(self, owner: int, parameters: Sequence[nn.Parameter]) -> dict[int, Tensor]:
        """Copies by the ids of the parameters; they stay as they are until the same owner takes the next ones.

        Args:
            owner: whose steps do not overlap: the id of the optimizer.
            parameters: what to copy.
        """
        kept = self._kept.get(owner)
        if kept is None or not are_same(kept.parameters, parameters):
            kept = self._kept[owner] = _prepared(parameters, {} if kept is None else kept.every)
        for i in kernels.host.copy_many(kept.copies, kept.parameters):
            parameter = parameters[i]
            kept.copies[i] = kept.every[id(parameter)] = parameter.detach().clone()
        return dict(zip(map(id, parameters), kept.copies, strict=True))

    def clear(self) -> None:
        """Give the memory back."""
        self._kept.clear()


def _prepared(parameters: Sequence[nn.Parameter], every: dict[int, Tensor]) -> _Kept:
    for parameter in parameters:
        if id(parameter) not in every:
            every[id(parameter)] = parameter.detach().clone()
    return _Kept(list(parameters), [every[id(parameter)] for parameter in parameters], every)
