"""The kernel in NumPy, which replaces `backends.native` if the extension is not compiled. Both have the same functions.

All sums are computed in float64, and squared deviations in a second pass, in pieces that fit into the caches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from threading import Lock
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import Parameter

from lightning_hooks.stats import schema
from lightning_hooks.stats.columns import Reduction
from lightning_hooks.stats.histogram import histogram
from lightning_hooks.stats.kernels.trail import Trail
from lightning_hooks.stats.kernels.writers import DirectWriter, FallbackWriter
from lightning_hooks.stats.moments import MOMENTS
from lightning_hooks.stats.schema import COUNT, MAX, MIN, NONFINITE, merge_moments
from lightning_hooks.stats.units.schema import COLUMNS
from lightning_hooks.stats.units.schema import merge as merge_units
from lightning_hooks.tensor_kinds import has_memory

Array = NDArray[np.float64]
_TINY: Final = {dtype: torch.finfo(dtype).tiny for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16)}
_PIECE: Final = 1 << 15  # elements that are converted to float64 at a time
_STACKED: Final = Reduction(lambda x: x.sum(0), lambda x: x.min(0), lambda x: x.max(0), lambda x: x)


class Writer(DirectWriter):
    """A function that merges a tensor into a row of a table.

    Args:
        table: has the `state`, which may be replaced.
        histogram_at: the offset of its histogram in the state, if it keeps one.
        axis: of the units that are merged too, into `table.units`, a list of a float64 tensor [units, 4] for each row, or None.
            A tensor whose units do not fit goes to the fallback, and nothing is written.
    """

    __slots__ = ("_axis", "_histogram_at", "_merging", "_table")

    def __init__(
        self, table: Any, row: int, histogram_at: int | None, fallback: FallbackWriter, axis: int | None = None
    ) -> None:
        super().__init__(self._write, row, fallback)
        self._table = table
        self._axis = axis
        self._histogram_at = histogram_at
        self._merging = Lock()  # several threads may call the module of the row at once

    def _write(self, tensor: Tensor) -> bool:
        if not _is_measured(tensor):
            return False
        units = None if self._axis is None else self._units_for(tensor, self._axis)
        if self._axis is not None and units is None:
            return False
        moments = _moments(tensor)
        counts = None if self._histogram_at is None else histogram(tensor).numpy()
        with self._merging:
            _put(self._table.state, self.row * MOMENTS, self._histogram_at, moments, counts, merging=True)
        self._note(moments, tensor)
        if units is not None and self._axis is not None:
            with self._merging:
                units[:] = merge_units(units, _units(tensor, self._axis))
        return True

    def _units_for(self, tensor: Tensor, axis: int) -> Array | None:
        """The numbers of the table that keep the units of a tensor; None where its units do not fit."""
        units: Tensor | None = self._table.units[self.row]
        if units is None or not -tensor.ndim <= axis < tensor.ndim or units.shape != (tensor.shape[axis], COLUMNS):
            return None
        return _numbers(units)

    def _note(self, moments: Array, tensor: Tensor) -> None:
        if isinstance(self.fallback.trail, Trail):
            extremes = moments[MIN], moments[MAX], moments[NONFINITE]
            abs_min = float(tensor.detach().abs().amin()) if tensor.numel() else math.inf
            self.fallback.trail.note(self.row, *extremes, abs_min)


def read(tensor: Tensor, /) -> bytes | None:
    """The raw moments of a tensor, packed as nine float64 numbers; None if this kernel does not measure the tensor."""
    return _moments(tensor).tobytes() if _is_measured(tensor) else None


def read_histogram(tensor: Tensor, /) -> tuple[bytes, bytes] | None:
    """The moments as from `read`, and the log2 buckets packed as float64 numbers; None as for `read`."""
    return (_moments(tensor).tobytes(), histogram(tensor).numpy().tobytes()) if _is_measured(tensor) else None


def read_many(tensors: Sequence[Tensor], /) -> list[bytes | None]:
    """The results of `read` for several tensors."""
    return [read(tensor) for tensor in tensors]


def measure_units(tensor: Tensor, axis: int, /) -> tuple[bytes, bytes] | None:
    """The moments as from `read`, and the packed units [units, 4] along an axis; None also if the tensor has no such axis."""
    if not (_is_measured(tensor) and -tensor.ndim <= axis < tensor.ndim):
        return None
    return _moments(tensor).tobytes(), _units(tensor, axis).tobytes()


def writer(table: Any, row: int, histogram_at: int | None, fallback: FallbackWriter, axis: int | None = None, /) -> Writer:
    """The `Writer` of a row, with its arguments."""
    return Writer(table, row, histogram_at, fallback, axis)


def measure_many_into(
    state: Tensor,
    firsts: NDArray[np.int64],
    tensors: Sequence[Tensor],
    subtracted: Sequence[Tensor] | None = None,
    histograms: NDArray[np.int64] | None = None,
    magnitudes: bool = True,
    /,
) -> list[int]:
    """Overwrite rows of a state with the moments and histograms of tensors, or of differences of pairs of tensors.

    Args:
        state: a contiguous float64 tensor.
        firsts: the offset in the state of the moments of each row, int64 [rows].
        tensors: one for each row.
        subtracted: a tensor to subtract from each of `tensors`, in float32 at least; None to subtract nothing.
        histograms: the offset in the state of each histogram, negative for a row that keeps none; None if no row keeps one.
        magnitudes: whether sums of magnitudes are requested. This kernel always measures them.

    Returns:
        The indices of the tensors that were skipped, because this kernel does not measure them.
    """
    skipped: list[int] = []
    for position, tensor in enumerate(tensors):
        if subtracted is not None:
            other = subtracted[position]
            if not (_is_measured(tensor) and _is_measured(other) and tensor.shape == other.shape):
                skipped.append(position)
                continue
            wide = torch.promote_types(torch.promote_types(tensor.dtype, other.dtype), torch.float32)
            tensor = tensor.detach().to(wide) - other.detach()
        histogram_at = None if histograms is None or histograms[position] < 0 else int(histograms[position])
        if not _is_measured(tensor):
            skipped.append(position)
            continue
        counts = None if histogram_at is None else histogram(tensor).numpy()
        _put(state, int(firsts[position]), histogram_at, _moments(tensor), counts, merging=False)
    return skipped


def compare_many(state: Tensor, firsts: NDArray[np.int64], tensors: Sequence[Tensor], others: Sequence[Tensor], /) -> list[int]:
    """Write the sums of products and of squares of pairs of tensors into a state.

    Args:
        state: a contiguous float64 tensor.
        firsts: the offset in the state of the three sums of each pair, int64 [pairs]: of the products, of the squares of the
            other tensor, and of those of the tensor.
        tensors: one for each pair.
        others: the other one of each pair.

    Returns:
        The indices of the pairs that were skipped: not in host memory, or of different dtypes or layouts.
    """
    skipped: list[int] = []
    for position, (first, tensor, other) in enumerate(zip(firsts.tolist(), tensors, others, strict=True)):
        if not _are_alike(tensor, other):
            skipped.append(position)
            continue
        sums = np.zeros(3)
        for pieces in zip(_pieces(tensor), _pieces(other), strict=True):
            new, old = (piece.double().numpy() for piece in pieces)
            with np.errstate(all="ignore"):
                sums += ((new * old).sum(), np.square(old).sum(), np.square(new).sum())
        _numbers(state)[first : first + 3] = sums
    return skipped


def copy_many(into: Sequence[Tensor], tensors: Sequence[Tensor], /) -> list[int]:
    """Copy tensors into existing tensors in host memory.

    Args:
        into: the targets; written.
        tensors: one for each target.

    Returns:
        The indices of the tensors that were skipped: not in host memory, or of another dtype or layout than the target.
    """
    skipped: list[int] = []
    for position, (old, new) in enumerate(zip(into, tensors, strict=True)):
        if _are_alike(old, new):
            old.detach().copy_(new.detach())
        else:
            skipped.append(position)
    return skipped


def _put(state: Tensor, first: int, histogram_at: int | None, row: Array, counts: Array | None, *, merging: bool) -> None:
    """Write the moments and the histogram of a tensor."""
    numbers = _numbers(state)
    kept = numbers[first : first + MOMENTS]
    kept[:] = _union([kept, row]) if merging and kept[COUNT] > 0 else row
    if counts is not None and histogram_at is not None:
        buckets = numbers[histogram_at : histogram_at + len(counts)]
        buckets[:] = counts + buckets if merging else counts


def _units(tensor: Tensor, axis: int) -> Array:
    """The units of a tensor, [units, 4]."""
    laid_out = tensor.detach().movedim(axis, -1)
    rows = laid_out.reshape(laid_out.numel() // max(laid_out.shape[-1], 1), laid_out.shape[-1])
    units = np.zeros((laid_out.shape[-1], COLUMNS))
    for piece in rows.split(max(1, _PIECE // max(laid_out.shape[-1], 1))):
        units = merge_units(units, _units_of(piece.double().numpy()))
    return units


def _units_of(values: Array) -> Array:
    """The units of float64 numbers [rows, units]."""
    with np.errstate(all="ignore"):
        magnitudes = np.abs(values)
        largest = magnitudes.max(0, initial=0.0)
        return np.stack([values.sum(0), np.square(values).sum(0), largest, np.count_nonzero(magnitudes == 0, axis=0)], axis=1)


def _numbers(state: Tensor) -> Array:
    if state.dtype is not torch.float64 or not state.is_contiguous():
        raise TypeError("expected a contiguous float64 state")
    numbers: Array = state.numpy()
    return numbers


def _is_measured(tensor: Tensor) -> bool:
    return (
        type(tensor) in (Tensor, Parameter)
        and tensor.is_cpu
        and tensor.dtype in _TINY
        and tensor.layout is torch.strided
        and not (tensor.is_neg() or tensor.is_nested)
        and has_memory(tensor)
    )


def _are_alike(one: Tensor, other: Tensor) -> bool:
    return (
        (_is_measured(one) and _is_measured(other))
        and (one.dtype, one.shape) == (other.dtype, other.shape)
        and one.stride() == other.stride()
    )


def _pieces(tensor: Tensor) -> Sequence[Tensor]:
    """The elements of a tensor, in pieces that fit into the caches."""
    elements = tensor.detach().reshape(-1)
    return (elements,) if elements.numel() <= _PIECE else elements.split(_PIECE)


def _moments(tensor: Tensor) -> Array:
    """The moments of a tensor, [9]."""
    rows = [_moments_of(piece.double().numpy(), _TINY[tensor.dtype]) for piece in _pieces(tensor)]
    return rows[0] if len(rows) == 1 else _union(rows)


def _moments_of(values: Array, tiny: float) -> Array:
    """The moments of float64 numbers, [9]; `tiny` is the smallest normal number of the dtype that they were converted from."""
    count = values.size
    if count == 0:
        return np.array([moment.neutral for moment in schema.MOMENTS])
    with np.errstate(all="ignore"):
        mean = values.sum() / count
        deviations, magnitudes = values - mean, np.abs(values)
        zeros, nonfinite = np.count_nonzero(magnitudes == 0), count - np.count_nonzero(np.isfinite(values))
        underflow = np.count_nonzero(magnitudes < tiny) - zeros
        # Do not use `np.dot`: it wakes the threads of NumPy's BLAS, which then spin and compete with the threads of torch. A
        # training with two threads took 10 to 40 times as long.
        m2, abs_sum = np.square(deviations, out=deviations).sum(), magnitudes.sum()
        return np.array([count, mean, m2, abs_sum, values.min(), values.max(), zeros, nonfinite, underflow])


def _union(rows: Sequence[Array]) -> Array:
    with np.errstate(invalid="ignore", over="ignore"):
        union: Array = merge_moments(np.stack(rows), _STACKED)
    return union
