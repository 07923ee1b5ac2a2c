"""The measurement of one tensor. Moments and histogram are computed at most once, however many accumulators read them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lightning_hooks.stats import kernels
from lightning_hooks.stats.histogram import BUCKETS
from lightning_hooks.stats.moments import merge, rescale, zeros_row
from lightning_hooks.stats.units.schema import COLUMNS
from lightning_hooks.stats.units.schema import rescale as rescale_units
from lightning_hooks.tensor_kinds import elements, is_dense, is_plain, is_transformed, kind_of, local_part, plain_numbers


class UnmeasurableError(TypeError):
    """The kind of a tensor gives no access to its elements, for example inside a transform of `torch.func`."""


def blame(error: Exception, name: str) -> Exception:
    """Note on an error which accumulator, or which statistic of a user, raised it; see `blamed`."""
    vars(error)["accumulator"] = name
    return error


def blamed(error: Exception) -> str | None:
    """The accumulator or the statistic of a user that raised an error; None if it is not known."""
    name = vars(error).get("accumulator")
    return name if isinstance(name, str) else None


class Measurement:
    """The moments, the histogram and the units of one tensor. Moments and histogram are computed on first access and cached.

    Args:
        tensor: the tensor to measure. It must not be written before the last access.

    Example:
        >>> Measurement(torch.tensor([1.0, 0.0])).moments[:2].tolist()
        [2.0, 0.5]
    """

    __slots__ = ("_histogram", "_moments", "_source")

    def __init__(self, tensor: Tensor) -> None:
        self._source = tensor
        self._moments: Tensor | None = None
        self._histogram: Tensor | None = None

    @property
    def tensor(self) -> Tensor:
        """The measured tensor, without its graph."""
        if self._source.requires_grad:
            self._source = self._source.detach()
        return self._source

    @property
    def moments(self) -> Tensor:
        """Raw moments, float64 [9], on the tensor's device.

        Raises:
            UnmeasurableError: the elements cannot be read.
        """
        if self._moments is None:
            packed = kernels.host.read(self._source)
            self._moments = self._measure(_moments_of) if packed is None else kernels.unpacked(packed)
        return self._moments

    @property
    def histogram(self) -> Tensor:
        """Counts of signed log2 buckets, float64 [BUCKETS], on the tensor's device.

        In host memory, the pass that counts the buckets also computes the moments.

        Raises:
            UnmeasurableError: the elements cannot be read.
        """
        if self._histogram is None:
            packed = kernels.host.read_histogram(self._source)
            if packed is None:
                self._histogram = self._measure(_histogram_of)
            else:
                self._moments, self._histogram = map(kernels.unpacked, packed)
        return self._histogram

    @property
    def abs_min(self) -> float:
        """The smallest magnitude; NaN if an element is NaN, infinity without elements. Waits for the device; not cached.

        Raises:
            UnmeasurableError: the elements cannot be read.
        """
        return float(self._measure(_abs_min_of))

    def units(self, axis: int) -> Tensor | None:
        """The units along a dimension, float64 [units, 4] on the tensor's device. The result is not cached.

        Args:
            axis: the dimension of the units; a negative one counts from the end.

        Returns:
            None if the tensor has no such dimension, or is not a dense floating-point tensor.
        """
        packed = kernels.host.measure_units(self._source, axis)
        if packed is not None:
            self._moments = self._moments if self._moments is not None else kernels.unpacked(packed[0])
            return kernels.unpacked(packed[1]).view(-1, COLUMNS) if packed[1] else None
        local = local_part(self.tensor)
        if not _is_ready(self._source) or not -local.ndim <= axis < local.ndim:
            return None
        return kernels.measure_units(local, axis)

    def _measure(self, function: Callable[[Tensor, int], Tensor]) -> Tensor:
        """The result of a function of the stored elements and of the number of zeros that a sparse tensor does not store.

        Raises:
            UnmeasurableError: there are no elements, or a subclass or a nested tensor lacks an operation that reading needs.
        """
        if is_transformed(self._source):
            raise UnmeasurableError(kind_of(self._source))
        try:
            stored = elements(self.tensor)
            result = None if stored is None else plain_numbers(function(*stored))
        except Exception as error:
            if is_plain(self._source) and not self._source.is_nested:
                raise
            raise UnmeasurableError(kind_of(self._source)) from error
        if result is None:
            raise UnmeasurableError(kind_of(self._source))
        return result


class UnscaledMeasurement(Measurement):
    """The measurement of a tensor divided by a loss scale. Moments and units are rescaled, so they need no copy of the tensor.

    Args:
        measurement: the measurement of the tensor that is still multiplied by the scale.
        scale: a scalar tensor on the tensor's device. It is not copied to the host, which would wait for the device.

    Example:
        >>> UnscaledMeasurement(Measurement(torch.tensor([2.0, 4.0])), torch.tensor(2.0)).moments[:2].tolist()
        [2.0, 1.5]
    """

    __slots__ = ("_quotient", "_scale", "_scaled")

    def __init__(self, measurement: Measurement, scale: Tensor) -> None:
        super().__init__(measurement.tensor)
        self._scaled = measurement
        self._scale = scale
        self._quotient: Tensor | None = None

    @property
    def tensor(self) -> Tensor:
        """The tensor divided by the scale, in float32 or float64, because the quotient may underflow in float16."""
        if self._quotient is None:
            scaled = self._scaled.tensor
            self._quotient = scaled.to(torch.promote_types(scaled.dtype, torch.float32)) / self._scale
        return self._quotient

    @property
    def moments(self) -> Tensor:
        """Raw moments of the quotient, float64 [9]. Underflow is that of the undivided tensor."""
        if self._moments is None:
            self._moments = rescale(self._scaled.moments, self._scale.double().reciprocal())
        return self._moments

    def units(self, axis: int) -> Tensor | None:
        """The units of the quotient; see `Measurement.units`."""
        scaled = self._scaled.units(axis)
        return None if scaled is None else rescale_units(scaled, self._scale.double().reciprocal())

    @property
    def histogram(self) -> Tensor:
        """Counts of signed log2 buckets of the quotient, float64 [BUCKETS]."""
        if self._histogram is None:
            self._histogram = _histogram_of(*(elements(self.tensor) or (self.tensor, 0)))
        return self._histogram


def measure_all(tensors: Sequence[Tensor]) -> list[Measurement]:
    """Measurements of many tensors. The moments of plain dense tensors are computed at once, with one call for each device.

    The moments of all other tensors are computed when they are first read.

    Example:
        >>> [each.moments[0].item() for each in measure_all([torch.ones(2), torch.ones(3)])]
        [2.0, 3.0]
    """
    measurements = [Measurement(tensor) for tensor in tensors]
    by_device: dict[torch.device, list[Measurement]] = {}
    for measurement, packed in zip(measurements, kernels.host.read_many(tensors), strict=True):
        if packed is not None:
            measurement._moments = kernels.unpacked(packed)
        elif _is_ready(measurement._source):
            by_device.setdefault(measurement._source.device, []).append(measurement)
    for group in by_device.values():
        rows = kernels.measure_many([local_part(measurement.tensor) for measurement in group])
        for measurement, moments in zip(group, rows, strict=True):
            measurement._moments = moments
    return measurements


def _is_ready(tensor: Tensor) -> bool:
    """Whether a kernel can read the tensor as it is: dense, of a floating dtype, and outside of a transform."""
    return is_dense(local_part(tensor)) and tensor.is_floating_point() and not is_transformed(tensor)


def _abs_min_of(stored: Tensor, zeros: int) -> Tensor:
    """The smallest magnitude of stored elements and of as many zeros."""
    if not stored.numel():
        return torch.tensor(0.0 if zeros else math.inf, dtype=torch.float64, device=stored.device)
    least = stored.double().abs().amin()
    return least * 0.0 if zeros else least


def _moments_of(dense: Tensor, zeros: int) -> Tensor:
    moments = kernels.measure(dense)
    return merge(moments, zeros_row(zeros, dense.device)) if zeros else moments


def _histogram_of(dense: Tensor, zeros: int) -> Tensor:
    counts = kernels.histogram(dense)
    counts[BUCKETS // 2] += zeros
    return counts
