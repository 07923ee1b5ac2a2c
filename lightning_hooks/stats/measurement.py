"""One look at one tensor: measured at most once, however many ask."""

from __future__ import annotations

import torch
from torch import Tensor

from lightning_hooks.stats import kernels
from lightning_hooks.stats.histogram import BUCKETS, histogram
from lightning_hooks.stats.moments import merge, zeros_row
from lightning_hooks.stats.prepare import elements, kind_of


class UnmeasurableError(TypeError):
    """A tensor of a kind that has no elements to read."""


class Measurement:
    """The moments and the histogram of one tensor, each computed when first asked for.

    Args:
        tensor: what was seen at a tap.

    Example:
        >>> Measurement(torch.tensor([1.0, 0.0])).moments[:2].tolist()
        [2.0, 0.5]
    """

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor.detach()
        self._moments: Tensor | None = None
        self._histogram: Tensor | None = None

    @property
    def moments(self) -> Tensor:
        """Raw moments, float64 [9], on the tensor's device."""
        if self._moments is None:
            dense, zeros = self._elements()
            self._moments = kernels.measure(dense)
            if zeros:
                self._moments = merge(self._moments, zeros_row(zeros, dense.device))
        return self._moments

    @property
    def histogram(self) -> Tensor:
        """Signed log2 buckets, float64 [BUCKETS], on the tensor's device."""
        if self._histogram is None:
            dense, zeros = self._elements()
            self._histogram = histogram(dense)
            self._histogram[BUCKETS // 2] += zeros
        return self._histogram

    def _elements(self) -> tuple[Tensor, int]:
        found = elements(self.tensor)
        if found is None:
            raise UnmeasurableError(kind_of(self.tensor))
        return found


def measure_all(tensors: list[Tensor]) -> list[Measurement]:
    """Measurements of many tensors; plain dense ones go through the kernel in one call per device.

    Args:
        tensors: any.
    """
    looks = [Measurement(tensor) for tensor in tensors]
    by_device: dict[torch.device, list[Measurement]] = {}
    for look in looks:
        if look.tensor.layout is torch.strided and look.tensor.is_floating_point() and not look.tensor.is_nested:
            by_device.setdefault(look.tensor.device, []).append(look)
    for group in by_device.values():
        if group[0].tensor.is_meta:
            continue
        for look, moments in zip(group, kernels.measure_many([look.tensor for look in group]), strict=True):
            look._moments = moments
    return looks
