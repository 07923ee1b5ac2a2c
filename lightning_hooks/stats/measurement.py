"""One look at one tensor: measured at most once, however many ask."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lightning_hooks.stats import kernels
from lightning_hooks.stats.histogram import BUCKETS, histogram
from lightning_hooks.stats.moments import merge, zeros_row
from lightning_hooks.stats.prepare import elements, is_plain, is_transformed, kind_of, local_part, plain_numbers


class UnmeasurableError(TypeError):
    """A tensor of a kind that has no elements to read."""


class Measurement:
    """The moments and the histogram of one tensor, each computed when first asked for.

    In the memory of this machine the kernel gives them as bytes (`packed`, `packed_histogram`), which a table there takes as
    they are; as tensors they exist for whoever asks.

    Args:
        tensor: what was seen at a tap.

    Example:
        >>> Measurement(torch.tensor([1.0, 0.0])).moments[:2].tolist()
        [2.0, 0.5]
    """

    __slots__ = ("_histogram", "_moments", "_packed", "_packed_histogram", "_seen", "_tried")

    def __init__(self, tensor: Tensor) -> None:
        self._seen = tensor
        self._tried = False
        self._packed: bytes | None = None
        self._packed_histogram: bytes | None = None
        self._moments: Tensor | None = None
        self._histogram: Tensor | None = None

    @property
    def tensor(self) -> Tensor:
        """What was seen, without its graph."""
        if self._seen.requires_grad:
            self._seen = self._seen.detach()
        return self._seen

    def packed(self, *, with_histogram: bool = False) -> bytes | None:
        """Raw moments as nine float64 numbers, or None where the kernel of this machine does not measure the tensor.

        Args:
            with_histogram: whether the histogram will be asked for too; both then take one pass.
        """
        if not self._tried:
            self._tried = True
            if with_histogram:
                both = kernels.host.read_histogram(self._seen)
                if both is not None:
                    self._packed, self._packed_histogram = both
            else:
                self._packed = kernels.host.read(self._seen)
        return self._packed

    def packed_histogram(self) -> bytes | None:
        """Signed log2 buckets as float64 numbers, or None where the kernel of this machine does not measure the tensor."""
        if self.packed(with_histogram=True) is not None and self._packed_histogram is None:
            _, self._packed_histogram = kernels.host.read_histogram(self._seen)
        return self._packed_histogram

    @property
    def moments(self) -> Tensor:
        """Raw moments, float64 [9], on the tensor's device."""
        if self._moments is None:
            packed = self.packed()
            if packed is not None:
                self._moments = _unpacked(packed)
            else:
                self._moments = self._read(_moments_of)
        return self._moments

    @property
    def histogram(self) -> Tensor:
        """Signed log2 buckets, float64 [BUCKETS], on the tensor's device."""
        if self._histogram is None:
            packed = self.packed_histogram()
            if packed is not None:
                self._histogram = _unpacked(packed)
            else:
                self._histogram = self._read(_histogram_of)
        return self._histogram

    def _read(self, measure: Callable[[Tensor, int], Tensor]) -> Tensor:
        """What `measure` makes of the elements and the number of zeros beside them.

        Raises:
            UnmeasurableError: there are no elements, or a subclass of tensors has not what it takes to read them.
        """
        if is_transformed(self._seen):
            raise UnmeasurableError(kind_of(self._seen))
        try:
            found = elements(self.tensor)
            result = None if found is None else plain_numbers(measure(*found))
        except Exception as error:
            if is_plain(self._seen):
                raise
            raise UnmeasurableError(kind_of(self._seen)) from error
        if result is None:
            raise UnmeasurableError(kind_of(self._seen))
        return result


def measure_all(tensors: list[Tensor]) -> list[Measurement]:
    """Measurements of many tensors; plain dense ones go through the kernel in one call per device.

    Args:
        tensors: any.
    """
    looks = [Measurement(tensor) for tensor in tensors]
    for look, packed in zip(looks, kernels.host.read_many(tensors), strict=True):
        look._packed, look._tried = packed, True
    by_device: dict[torch.device, list[Measurement]] = {}
    for look in looks:
        if look._packed is not None:
            continue
        seen = look._seen
        if not is_plain(local_part(seen)) or is_transformed(seen):  # alone, as it may not be measurable
            continue
        if seen.layout is torch.strided and seen.is_floating_point() and not seen.is_nested:
            by_device.setdefault(look.tensor.device, []).append(look)
    for group in by_device.values():
        if group[0].tensor.is_meta:
            continue
        for look, moments in zip(group, kernels.measure_many([local_part(look.tensor) for look in group]), strict=True):
            look._moments = moments
    return looks


def _moments_of(dense: Tensor, zeros: int) -> Tensor:
    moments = kernels.measure(dense)
    return merge(moments, zeros_row(zeros, dense.device)) if zeros else moments


def _histogram_of(dense: Tensor, zeros: int) -> Tensor:
    counts = histogram(dense)
    counts[BUCKETS // 2] += zeros
    return counts


def _unpacked(numbers: bytes) -> Tensor:
    return torch.frombuffer(bytearray(numbers), dtype=torch.float64)
