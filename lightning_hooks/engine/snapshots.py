"""What parameters were before an update."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn


class Snapshots:
    """Copies of parameters, in memory that is kept from one watched step to the next.

    Memory that is new in every step costs more than the copying: the system hands it out page by page. What is not in the
    memory of this machine is copied anew each time, as its allocator keeps memory by itself; so is what is no plain tensor.

    Example:
        >>> weight = nn.Parameter(torch.ones(2))
        >>> kept = Snapshots()
        >>> kept.take(0, [weight])[id(weight)].tolist()
        [1.0, 1.0]
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[int, int], Tensor] = {}

    def take(self, owner: int, parameters: Iterable[nn.Parameter]) -> dict[int, Tensor]:
        """Copies by the ids of the parameters; they stay as they are until the same owner takes the next ones.

        Args:
            owner: whose steps do not overlap: the id of the optimizer.
            parameters: what to copy.
        """
        out: dict[int, Tensor] = {}
        values: list[Tensor] = []
        copies: list[Tensor] = []
        for parameter in parameters:
            if type(parameter) is not nn.Parameter or not parameter.is_cpu or parameter.layout is not torch.strided:
                out[id(parameter)] = parameter.detach().clone()
                continue
            kept = self._kept.get((owner, id(parameter)))
            if (
                kept is None
                or kept.dtype != parameter.dtype
                or kept.shape != parameter.shape
                or kept.stride() != parameter.stride()
            ):
                kept = self._kept[owner, id(parameter)] = torch.empty_like(parameter, requires_grad=False).detach()
            out[id(parameter)] = kept
            copies.append(kept)
            values.append(parameter)
        if copies:
            with torch.no_grad():
                torch._foreach_copy_(copies, values)
        return out

    def clear(self) -> None:
        """Give the memory back."""
        self._kept.clear()
