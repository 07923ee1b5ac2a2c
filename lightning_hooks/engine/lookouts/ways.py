"""Ways: how far a copy of a model has gone since the first look, beside how far its model has gone."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import torch
from torch import Tensor, nn

from lightning_hooks.engine.lookouts.copies import Copy
from lightning_hooks.stats.host_copy import HostCopy, begin_copy

_PARAMETERS: Final = 4
"""The number of parameters that are looked at."""
_ELEMENTS: Final = 4096
"""The number of elements of a parameter that are looked at."""


class Way(NamedTuple):
    """How far some weights have gone, as root sums of squares.

    Args:
        own: of the copy.
        source: of the model.
        gap: between copy and model at the first look.
        size: of the model at the first look.
        cosine: between the ways of both.
        step: at which they were measured.
    """

    own: float
    source: float
    gap: float
    size: float
    cosine: float
    step: int = 0

    @property
    def is_of_a_copy(self) -> bool:
        """Whether copy and model were hardly apart at the first look, compared with the way that the model has gone since."""
        return self.gap <= 0.2 * self.source and self.source >= 0.05 * self.size > 0


class Ways:
    """Measures ways on the device of the weights, and reads them when they have arrived.

    Args:
        copy: whose way it is.
    """

    def __init__(self, copy: Copy) -> None:
        self._copy = copy
        self._names: list[str] = []
        pairs = [(name, own, source) for name, own, source in copy.parameters() if _can_be_read(own, source)]
        for name, _, _ in pairs[:: max(1, len(pairs) // _PARAMETERS)][:_PARAMETERS]:
            self._names.append(name)
        self._begin = self._taken()
        self._measured: HostCopy | None = None
        self._step = 0
        self.last: Way | None = None

    def look(self, step: int) -> None:
        """Read what the look before has measured, and measure anew at a step."""
        self._read()
        now = self._taken()
        if self._measured is None and now and len(now) == len(self._begin):
            self._measured, self._step = begin_copy(_measured(self._begin, now)), step
            self._read()

    def _read(self) -> None:
        if self._measured is not None and (self._measured.ready or self._measured.has_arrived):
            own, source, gap, size, dot = self._measured.wait().tolist()
            cosine = dot / math.sqrt(own * source) if own > 0 and source > 0 else 0.0
            self.last = Way(math.sqrt(own), math.sqrt(source), math.sqrt(gap), math.sqrt(size), cosine, self._step)
            self._measured = None

    def _taken(self) -> list[tuple[Tensor, Tensor]]:
        pairs = {name: (own, source) for name, own, source in self._copy.parameters()}
        return [(_some(pairs[name][0]), _some(pairs[name][1])) for name in self._names if name in pairs]


def _can_be_read(own: Tensor, source: Tensor) -> bool:
    kinds = {Tensor, nn.Parameter}
    return type(own) in kinds and type(source) in kinds and own.device == source.device and own.is_floating_point()


def _some(tensor: Tensor) -> Tensor:
    """Some elements of a tensor, copied."""
    flat = tensor.detach().reshape(-1)
    return flat[:: max(1, len(flat) // _ELEMENTS)][:_ELEMENTS].float().clone()


@torch.no_grad()
def _measured(begin: list[tuple[Tensor, Tensor]], now: list[tuple[Tensor, Tensor]]) -> Tensor:
    """The squares of what a `Way` holds, with the dot product of both ways; float32 [5]."""
    sums = []
    for (own_then, source_then), (own, source) in zip(begin, now, strict=True):
        ways = own - own_then, source - source_then
        gap = source_then - own_then
        products = (ways[0], ways[0]), (ways[1], ways[1]), (gap, gap), (source_then, source_then), ways
        sums.append(torch.stack([torch.dot(*each) for each in products]))
    return torch.stack(sums).sum(0)
