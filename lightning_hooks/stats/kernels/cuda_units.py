"""The measurement of units on a CUDA device, in Triton. One launch reads the tensor, and a second one merges the parts.

A writer of a table measures the moments of the tensor with one more launch, and calls no operation of torch but for memory. No
function waits for the device. Tensors with gaps in their memory are copied first. The reference measures dtypes that are not
floating, and subclasses. Importing this module raises if Triton is not installed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from lightning_hooks.stats import kernels
from lightning_hooks.stats.kernels import triton_units
from lightning_hooks.stats.kernels.addresses import CODES, Found, find
from lightning_hooks.stats.kernels.cuda import _current, _launch
from lightning_hooks.stats.kernels.triton_units import COLUMN_ROWS, COLUMN_UNITS, RUN_BLOCK
from lightning_hooks.stats.units import reference
from lightning_hooks.stats.units.schema import COLUMNS

__all__ = ["measure", "merge_into", "writer"]

# A tensor is divided among about as many programs, because as many keep a large device busy.
_PROGRAMS: Final = 1024
# The least number of neighbouring elements of a unit that are read as a run. Shorter runs are read as columns and merged later.
_SHORTEST: Final = 8


class _Layout(NamedTuple):
    """The shape of a tensor as it lies in memory, slowest dimension first: [outer, units, inner]."""

    outer: int
    units: int
    inner: int


def measure(tensor: Tensor, axis: int) -> Tensor:
    """The units of a tensor along an axis, float64 [units, 4] on its device, without waiting for the device.

    Args:
        tensor: real and dense.
        axis: the dimension of the units; a negative one counts from the end.

    Raises:
        IndexError: the tensor has no such axis.
    """
    out = torch.zeros(tensor.shape[axis], COLUMNS, dtype=torch.float64, device=tensor.device)
    return out if merge_into(out, tensor, axis) else reference.measure(tensor, axis)


def merge_into(units: Tensor, tensor: Tensor, axis: int) -> bool:
    """Merge the units of a tensor into present units, on the current stream.

    Args:
        units: the present units, float64 [units, 4], contiguous, on a CUDA device; written.
        tensor: on the same device.
        axis: the dimension of the units; a negative one counts from the end.

    Returns:
        False if nothing was launched, because the Triton kernels do not measure the tensor: another dtype, a subclass, another
        device, or another number of units.
    """
    found = _find(units, tensor, axis)
    if found is None:
        return False
    if found[1]:
        with _current(units):
            _merge(units, *_parts_of(found, _layout(found[2], axis % tensor.ndim)))
    return True


def writer(
    measure_moments: Callable[[Tensor], bool], by_row: Sequence[Tensor | None], row: int, axis: int
) -> Callable[[Tensor], bool]:
    """A function that merges a tensor into a row and into its units, or rejects the tensor and returns False.

    Args:
        measure_moments: merges a tensor into the moments of the row, or rejects the tensor and returns False.
        by_row: the present units of each row, as for `merge_into`; None for a row without units yet.
        row: the index of the row.
        axis: the dimension of the units; a negative one counts from the end.
    """

    def write(tensor: Tensor) -> bool:
        units = by_row[row]
        found = None if units is None else _find(units, tensor, axis)
        if units is None or found is None or kernels.is_capturing(units.device):
            return False
        if not found[1]:
            return measure_moments(tensor)
        with _current(units):
            # Measure the units first: nothing has been merged yet if that raises, or if the moments are rejected.
            parts, several = _parts_of(found, _layout(found[2], axis % tensor.ndim))
            if not measure_moments(tensor):
                return False
            _merge(units, parts, several)
        return True

    return write


def _find(units: Tensor, tensor: Tensor, axis: int) -> Found | None:
    """The elements of a tensor that can be merged into these units; None for other tensors."""
    if not -tensor.ndim <= axis < tensor.ndim or units.shape != (tensor.shape[axis], COLUMNS):
        return None
    return find(tensor, units.get_device())


def _layout(tensor: Tensor, axis: int) -> _Layout:
    """The layout of the units of a tensor without gaps."""
    many = tensor.shape[axis]
    # In memory without gaps, the stride of a dimension is the product of the sizes of all faster dimensions, whatever their
    # order.
    inner = tensor.stride(axis) if many > 1 else tensor.numel()
    return _Layout(tensor.numel() // (many * inner), many, inner)


def _parts_of(found: Found, layout: _Layout) -> tuple[Tensor, int]:
    """The units of parts of a tensor, float64 [parts, units, 4], and the number of parts."""
    address, _, tensor = found
    outer, many, inner = layout
    if 1 < inner < _SHORTEST:
        # Short runs would leave lanes idle. Measure every element of a run as a unit, then merge neighbouring units.
        columns = torch.zeros(many * inner, COLUMNS, dtype=torch.float64, device=tensor.device)
        _merge(columns, *_parts_of(found, _Layout(outer, many * inner, 1)))
        return columns.view(many, inner, COLUMNS).transpose(0, 1).contiguous(), inner
    blocks = -(-many // COLUMN_UNITS) if inner == 1 else many
    length = -(-outer // COLUMN_ROWS) if inner == 1 else -(-outer * inner // RUN_BLOCK)
    steps = max(1, -(-length * blocks // _PROGRAMS))
    several = -(-length // steps)
    parts = torch.empty(several, many, COLUMNS, dtype=torch.float64, device=tensor.device)
    code: dict[str, Any] = {"CODE": CODES[tensor.dtype]}
    programs = several * blocks
    if inner == 1:
        columns_of = (address, outer, many, steps, parts.data_ptr())
        _launch(triton_units.measure_columns, programs, parts, *columns_of, **code, UNITS=COLUMN_UNITS, ROWS=COLUMN_ROWS)
    else:
        runs_of = (address, outer, many, inner, steps, parts.data_ptr())
        _launch(triton_units.measure_runs, programs, parts, *runs_of, **code, BLOCK=RUN_BLOCK)
    return parts, several


def _merge(units: Tensor, parts: Tensor, several: int) -> None:
    many = len(units)
    numbers = (parts.data_ptr(), several, many, units.data_ptr(), 1)
    _launch(triton_units.merge_parts, -(-many // COLUMN_UNITS), units, *numbers, UNITS=COLUMN_UNITS)
