"""The measurement where nothing is compiled: NumPy and torch, with the same functions as `native`.

What it does not measure it says so of, as `native` does, and `elsewhere` serves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import compress
from struct import Struct
from time import perf_counter_ns
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import Parameter

from lightning_hooks.stats.histogram import histogram
from lightning_hooks.stats.kernels import passes, stacks
from lightning_hooks.stats.kernels.passes import NEUTRAL, Row, merged
from lightning_hooks.stats.moments import MOMENTS

Array = NDArray[Any]
_ROW: Final = Struct("=9d")
_KINDS: Final = (Tensor, Parameter)
_TINY: Final = {dtype: torch.finfo(dtype).tiny for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16)}
_WIDE: Final = (torch.float32, torch.float64)  # what NumPy adds up; the others become float32, exactly
_is_wrapped: Final[Callable[[Tensor], bool]] = torch._C._functorch.is_functorch_wrapped_tensor
_COLUMNS: Final = np.arange(MOMENTS)
_CHUNK: Final = 1 << 20  # elements that are converted at a time


class Way:
    """What a detour may be made of.

    `direct` says whether tensors may be written without it; `calls` counts those that were, and `nanoseconds` the time that
    this took.
    """

    direct: bool
    nanoseconds: int = 0
    calls: int = 0


def read(tensor: Tensor, /) -> bytes | None:
    """Raw moments as nine float64 numbers, or None for what is not measured here."""
    row = _row(tensor)
    return None if row is None else _ROW.pack(*row)


def read_histogram(tensor: Tensor, /) -> tuple[bytes, bytes] | None:
    """Moments as `read` has them, and log2 buckets as float64 numbers; None for what is not measured here."""
    row = _row(tensor)
    return None if row is None else (_ROW.pack(*row), histogram(tensor).numpy().tobytes())


def read_many(tensors: Sequence[Tensor], /) -> list[bytes | None]:
    """`read` of each."""
    return [read(tensor) for tensor in tensors]


def writer(table: Any, row: int, histogram_at: int | None, detour: Any, /) -> Callable[[Tensor], None]:
    """A function that merges a tensor into a row of a table.

    Args:
        table: has the `state`, and says whether `magnitudes` are asked of it.
        row: which.
        histogram_at: the first number of its histogram in the state, if it keeps one.
        detour: `direct` says at every call whether tensors may be written so; called with the row and a tensor in place of
            that, and where it is not measured here or anything goes wrong.
    """
    magnitudes = table.magnitudes
    first = row * MOMENTS
    state: Tensor | None = None
    kept = np.empty(0)
    bytewise = kept.data

    def merge(tensor: Tensor) -> bool:
        nonlocal state, kept, bytewise
        new = _row(tensor, magnitudes)
        if new is None:
            return False
        if table.state is not state:  # the same from step to step
            kept = _numbers(table.state)
            state, bytewise = table.state, kept.data
        counts = None if histogram_at is None else histogram(tensor).numpy()
        _put(bytewise, first, new, merging=True)
        if counts is not None and histogram_at is not None:
            kept[histogram_at : histogram_at + len(counts)] += counts
        return True

    way = detour if isinstance(detour, Way) else None

    def write(tensor: Tensor) -> None:
        begun = perf_counter_ns()
        try:
            written = detour.direct and merge(tensor)
        except Exception:  # the detour meets the same error, and knows what to do about it
            written = False
        if not written:
            detour(row, tensor)
        elif way is not None:
            way.nanoseconds += perf_counter_ns() - begun
            way.calls += 1

    return write


def measure_many_into(
    state: Tensor,
    firsts: NDArray[np.int64],
    tensors: Sequence[Tensor],
    taken_away: Sequence[Tensor] | None = None,
    histograms: NDArray[np.int64] | None = None,
    magnitudes: bool = True,
    /,
) -> list[int]:
    """Set rows of a state to the moments of tensors, or of what they are more than others, in float32 at least.

    Args:
        state: float64.
        firsts: the first number of each row in it.
        tensors: in the same order.
        taken_away: in the same order, of the same shapes.
        histograms: the first number of each histogram, a negative one for rows that keep none.
        magnitudes: as in `passes.measure`.

    Returns:
        Which of the tensors, counted from 0, are not measured here.
    """
    kept = _numbers(state)
    left: list[int] = []
    alone: list[int] = []
    small: dict[tuple[Any, ...], list[int]] = {}
    for position, tensor in enumerate(tensors):
        other = None if taken_away is None else taken_away[position]
        if not _is_ours(tensor) or not (other is None or (_is_ours(other) and other.shape == tensor.shape)):
            left.append(position)
        elif 0 < tensor.numel() <= stacks.LARGEST and (histograms is None or histograms[position] < 0):
            small.setdefault((tensor.dtype, tensor.shape, other if other is None else other.dtype), []).append(position)
        else:
            alone.append(position)
    for positions in small.values():
        if len(positions) < stacks.FEWEST:
            alone += positions
        else:
            _measure_stacks(kept, firsts, tensors, taken_away, positions, magnitudes)
    for position in alone:
        tensor = tensors[position]
        seen = tensor if taken_away is None else _difference(tensor, taken_away[position])
        row = _row(seen, magnitudes)
        if row is None:
            left.append(position)
            continue
        _put(kept.data, int(firsts[position]), row, merging=False)
        place = -1 if histograms is None else int(histograms[position])
        if place >= 0:
            counts = histogram(seen).numpy()
            kept[place : place + len(counts)] = counts
    return sorted(left)


def copy_many(into: Sequence[Tensor], tensors: Sequence[Tensor], /) -> list[int]:
    """Copy tensors into others.

    Args:
        into: in the memory of this machine.
        tensors: in the same order.

    Returns:
        Which of the tensors, counted from 0, are not copied here, or not of the same type and layout as what they go into.
    """
    alike = [_are_alike(old, new) for old, new in zip(into, tensors, strict=True)]
    if any(alike):
        with torch.no_grad():
            torch._foreach_copy_(list(compress(into, alike)), list(compress(tensors, alike)))
    return [i for i, same in enumerate(alike) if not same]


def _are_alike(old: Tensor, new: Tensor) -> bool:
    return (
        _is_ours(old) and _is_ours(new) and old.dtype == new.dtype and old.shape == new.shape and old.stride() == new.stride()
    )


def put_moments(state: Tensor, first: int, moments: bytes, merging: bool, /) -> None:
    """Write a row of moments, as `read` gives it, into a state.

    Args:
        state: float64.
        first: the first number of the row in it.
        moments: the row.
        merging: with what the row holds, or in place of it.
    """
    _put(_numbers(state).data, first, _ROW.unpack(moments), merging)


def put_many(state: Tensor, firsts: Sequence[int], moments: Sequence[bytes], /) -> None:
    """Set several rows of a state."""
    bytewise = _numbers(state).data
    for first, row in zip(firsts, moments, strict=True):
        _put(bytewise, first, _ROW.unpack(row), merging=False)


def put_histogram(state: Tensor, first: int, counts: bytes, merging: bool, /) -> None:
    """Write a histogram into a state; arguments as in `put_moments`."""
    new = np.frombuffer(counts)
    kept = _numbers(state)[first : first + len(new)]
    kept[:] = kept + new if merging else new


def _numbers(state: Tensor) -> Array:
    if state.dtype is not torch.float64 or not state.is_contiguous():  # rows are written as bytes
        raise TypeError("expected a contiguous float64 state")
    numbers: Array = state.numpy()
    return numbers


def _put(bytewise: memoryview, first: int, row: Row, merging: bool) -> None:
    if merging:
        row = merged(_ROW.unpack_from(bytewise, 8 * first), row)
    _ROW.pack_into(bytewise, 8 * first, *row)


def _is_ours(tensor: Tensor) -> bool:
    return (
        type(tensor) in _KINDS
        and tensor.is_cpu
        and tensor.dtype in _TINY
        and tensor.layout is torch.strided
        and not (tensor.is_neg() or tensor.is_nested or tensor._is_zerotensor() or _is_wrapped(tensor))
    )


def _row(tensor: Tensor, magnitudes: bool = True) -> Row | None:
    if type(tensor) in _KINDS and tensor.dtype in _WIDE:
        try:  # what `_is_ours` asks for one by one
            values = (tensor.detach() if tensor.requires_grad else tensor).numpy()
        except (RuntimeError, TypeError):
            return None
        if 0 < values.size <= passes.ALONE and values.flags.c_contiguous:
            return passes.moments_of(values.reshape(-1), _TINY[tensor.dtype], magnitudes=magnitudes)
    elif not _is_ours(tensor):
        return None
    tiny = _TINY[tensor.dtype]
    row = NEUTRAL
    for flat in _flat(tensor.detach()):
        row = merged(row, passes.measure(flat, tiny, magnitudes=magnitudes))
    return row


def _flat(tensor: Tensor) -> Iterator[Tensor]:
    """The numbers in one dimension, in any order, as float32 or float64; converted piece by piece."""
    if not tensor.is_contiguous():
        strides = tensor.stride()
        tensor = tensor.permute(sorted(range(len(strides)), key=lambda i: -strides[i]))  # without gaps it needs no copy now
    flat = tensor.reshape(-1)
    if flat.dtype in _WIDE:
        yield flat
    else:
        for piece in flat.split(_CHUNK):
            yield piece.float()


def _difference(after: Tensor, before: Tensor) -> Tensor:
    wide = torch.promote_types(torch.promote_types(after.dtype, before.dtype), torch.float32)
    return after.detach().to(wide) - before.detach()


def _measure_stacks(
    kept: Array,
    firsts: NDArray[np.int64],
    tensors: Sequence[Tensor],
    taken_away: Sequence[Tensor] | None,
    positions: list[int],
    magnitudes: bool,
) -> None:
    """Set the rows of tensors of one shape and kind."""
    size = tensors[positions[0]].numel()
    tiny = _TINY[tensors[positions[0]].dtype]
    at_once = max(1, stacks.TOGETHER // size)
    for start in range(0, len(positions), at_once):
        group = positions[start : start + at_once]
        with torch.no_grad():  # parameters get no node of a graph
            stack = torch.stack([tensors[i] for i in group]).view(len(group), -1)
            if taken_away is not None:
                stack = _difference(stack, torch.stack([taken_away[i] for i in group]).view(len(group), -1))
                tiny = _TINY[stack.dtype]
        rows = stacks.measure((stack if stack.dtype in _WIDE else stack.float()).numpy(), tiny, magnitudes=magnitudes)
        kept[firsts[group][:, None] + _COLUMNS] = rows
