"""The measurement of units on a CUDA device, in Triton. One launch reads the tensor, and a second one merges the parts.

No function waits for the device. Tensors with gaps in their memory are copied first. The reference measures dtypes that are not
floating, and subclasses. Importing this module raises if Triton is not installed.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from lightning_hooks.stats.kernels import triton_units
from lightning_hooks.stats.kernels.addresses import CODES, Found, find
from lightning_hooks.stats.kernels.cuda import _current, _launch
from lightning_hooks.stats.kernels.triton_units import COLUMN_ROWS, COLUMN_UNITS, RUN_BLOCK
from lightning_hooks.stats.units import reference
from lightning_hooks.stats.units.schema import COLUMNS

__all__ = ["measure", "merge_into"]

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
    if not -tensor.ndim <= axis < tensor.ndim or units.shape != (tensor.shape[axis], COLUMNS):
        return False
    found = find(tensor, units.get_device())
    if found is None:
        return False
    address, size, kept = found
    if size:
        with _current(units):
            _measure(units, (address, size, kept), _layout(kept, axis % tensor.ndim))
    return True


def _layout(tensor: Tensor, axis: int) -> _Layout:
    """The layout of the units of a tensor without gaps."""
    many = tensor.shape[axis]
    # In memory without gaps, the stride of a dimension is the product of the sizes of all faster dimensions, whatever their
    # order.
    inner = tensor.stride(axis) if many > 1 else tensor.numel()
    return _Layout(tensor.numel() // (many * inner), many, inner)


def _measure(units: Tensor, found: Found, layout: _Layout) -> None:
    address, _, tensor = found
    outer, many, inner = layout
    if 1 < inner < _SHORTEST:
        # Short runs would leave lanes idle. Measure every element of a run as a unit, then merge neighbouring units.
        columns = torch.zeros(many * inner, COLUMNS, dtype=torch.float64, device=units.device)
        _measure(columns, found, _Layout(outer, many * inner, 1))
        parts = columns.view(many, inner, COLUMNS).transpose(0, 1).contiguous()
        _merge(units, parts, inner, many)
        return
    blocks = -(-many // COLUMN_UNITS) if inner == 1 else many
    length = -(-outer // COLUMN_ROWS) if inner == 1 else -(-outer * inner // RUN_BLOCK)
    steps = max(1, -(-length * blocks // _PROGRAMS))
    several = -(-length // steps)
    parts = torch.empty(several, many, COLUMNS, dtype=torch.float64, device=units.device)
    code: dict[str, Any] = {"CODE": CODES[tensor.dtype]}
    programs = several * blocks
    if inner == 1:
        columns_of = (address, outer, many, steps, parts.data_ptr())
        _launch(triton_units.measure_columns, programs, units, *columns_of, **code, UNITS=COLUMN_UNITS, ROWS=COLUMN_ROWS)
    else:
        runs_of = (address, outer, many, inner, steps, parts.data_ptr())
        _launch(triton_units.measure_runs, programs, units, *runs_of, **code, BLOCK=RUN_BLOCK)
    _merge(units, parts, several, many)


def _merge(units: Tensor, parts: Tensor, several: int, many: int) -> None:
    numbers = (parts.data_ptr(), several, many, units.data_ptr(), 1)
    _launch(triton_units.merge_parts, -(-many // COLUMN_UNITS), units, *numbers, UNITS=COLUMN_UNITS)
