"""Copies of tensors, in memory that is kept from one watched step to the next.

Allocating in every step would cost more than copying: the system hands out new memory page by page. Tensors on a CUDA device
are copied in a few launches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from lightning_hooks.foreach import foreach
from lightning_hooks.snapshot.contents import are_same
from lightning_hooks.stats import kernels
from lightning_hooks.tensor_kinds import is_plain


class Snapshots:
    """Copies of parameters. Each optimizer has copies of its own, because one may step inside the step of another.

    Example:
        >>> weight, optimizer = nn.Parameter(torch.ones(2)), torch.optim.SGD([torch.ones(1)])
        >>> Snapshots().take(optimizer, [weight])[0].tolist()
        [1.0, 1.0]
    """

    def __init__(self) -> None:
        self._kept: WeakKeyDictionary[Any, _Kept] = WeakKeyDictionary()

    def take(self, optimizer: Any, parameters: Sequence[nn.Parameter]) -> list[Tensor]:
        """Copies in the order of the parameters; the next call for the optimizer may overwrite them."""
        kept = self._kept.get(optimizer)
        if kept is None:
            kept = self._kept[optimizer] = _Kept()
        # Most steps copy the parameters of the step before: a look-up of each would call Python for its hash.
        if not are_same(kept.parameters, parameters):
            kept.parameters, kept.memory = [*parameters], [kept.all.get(parameter) for parameter in parameters]
        copies = copy_all(parameters, kept.memory)
        if not are_same(kept.memory, copies):
            kept.all.update(zip(parameters, copies, strict=True))
            kept.memory = [*copies]
        return copies


@dataclass(slots=True)
class _Kept:
    """The copies of the parameters of one optimizer: of all that were ever copied, and those of the last call in its order."""

    all: dict[nn.Parameter, Tensor] = field(default_factory=dict)
    parameters: list[nn.Parameter] = field(default_factory=list)
    memory: list[Tensor | None] = field(default_factory=list)


def copy_all(tensors: Sequence[Tensor], memory: Sequence[Tensor | None]) -> list[Tensor]:
    """Copies of tensors, detached.

    Args:
        tensors: the tensors to copy.
        memory: for each tensor a copy of another step, which is overwritten if the tensor fits; None if there is none yet. A
            tensor of a subclass is cloned each time.

    Example:
        >>> memory = torch.zeros(2)
        >>> copy_all([torch.ones(2)], [memory])[0] is memory
        True
    """
    copies = [tensor.detach().clone() if old is None else old for tensor, old in zip(tensors, memory, strict=True)]
    present = [i for i, old in enumerate(memory) if old is not None]
    if len(present) == len(copies):
        left = kernels.host.copy_many(copies, tensors)
    else:
        left = [present[i] for i in kernels.host.copy_many([copies[i] for i in present], [tensors[i] for i in present])]
    if not left:
        return copies
    together = [i for i in left if _are_alike(copies[i], tensors[i])]
    if together:
        with torch.no_grad():
            foreach("copy", [copies[i] for i in together], [tensors[i] for i in together], owned=True)
    for i in sorted({*left} - {*together}):
        copies[i] = tensors[i].detach().clone()
    return copies


def _are_alike(copy: Tensor, tensor: Tensor) -> bool:
    return (
        is_plain(tensor)
        and tensor.layout is torch.strided
        and (copy.device, copy.dtype, copy.shape) == (tensor.device, tensor.dtype, tensor.shape)
        and copy.stride() == tensor.stride()
    )
