"""A look at a tensor that is still multiplied by a loss scale."""

from __future__ import annotations

import torch
from torch import Tensor

from lightning_hooks.stats.histogram import BUCKETS, histogram
from lightning_hooks.stats.measurement import Measurement
from lightning_hooks.stats.moments import rescale
from lightning_hooks.stats.prepare import elements


class Divided(Measurement):
    """The look at a tensor divided by a scale. The moments are those of the tensor itself, divided: it is not copied for them.

    Args:
        look: at the tensor as it is.
        scale: a scalar, on the tensor's device: nothing waits for it.

    Example:
        >>> Divided(Measurement(torch.tensor([2.0, 4.0])), torch.tensor(2.0)).moments[:2].tolist()
        [2.0, 1.5]
    """

    __slots__ = ("_look", "_quotient", "_scale")

    def __init__(self, look: Measurement, scale: Tensor) -> None:
        super().__init__(look.tensor)
        self._look = look
        self._scale = scale
        self._quotient: Tensor | None = None

    @property
    def tensor(self) -> Tensor:
        """The tensor divided by the scale, in float32 at least: a loss scale keeps what float16 has no numbers for."""
        if self._quotient is None:
            seen = self._look.tensor
            self._quotient = seen.to(torch.promote_types(seen.dtype, torch.float32)) / self._scale
        return self._quotient

    def packed(self, *, with_histogram: bool = False) -> bytes | None:
        """None: the numbers of the kernel are not those asked for."""
        return None

    def packed_histogram(self) -> bytes | None:
        """None, as `packed`."""
        return None

    @property
    def moments(self) -> Tensor:
        """Raw moments of the quotient, float64 [9]."""
        if self._moments is None:
            self._moments = rescale(self._look.moments, self._scale.double().reciprocal())
        return self._moments

    @property
    def histogram(self) -> Tensor:
        """Signed log2 buckets of the quotient, float64 [BUCKETS]."""
        if self._histogram is None:
            dense, zeros = elements(self.tensor) or (self.tensor, 0)
            self._histogram = histogram(dense)
            self._histogram[BUCKETS // 2] += zeros
        return self._histogram
