"""The measurement of units on a CUDA device, in Triton. One launch reads the tensor, and a second one merges the parts.

A writer of a table measures the moments of the tensor with one more launch, and calls no operation of torch but for memory. No
function waits for the device. Tensors with gaps in their memory are copied first. The reference measures dtypes that are not
floating, and subclasses. Importing this module raises if Triton is not installed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from lightning_hooks.stats import kernels
from lightning_hooks.stats.kernels import triton_units
from lightning_hooks.stats.kernels.addresses import CODES, Found, find, is_dense
from lightning_hooks.stats.kernels.cuda import _current, _launch
from lightning_hooks.stats.kernels.triton_units import COLUMN_ROWS, COLUMN_UNITS, RUN_BLOCK
from lightning_hooks.stats.units import reference
from lightning_hooks.stats.units.schema import ABS_MAX, COLUMNS

__all__ = ["division", "kernels_of", "measure", "merge_into", "split_of", "usual_numbers", "writer"]

# A tensor is divided among about as many programs, because as many keep a large device busy.
_PROGRAMS: Final = 1024
# The least number of neighbouring elements of a unit that are read as a run. Shorter runs are read as columns.
_SHORTEST: Final = 8
_MERGING: Final = {"UNITS": COLUMN_UNITS}  # the constants of `merge_parts`


class _Layout(NamedTuple):
    """The shape of a tensor as it lies in memory, slowest dimension first: [outer, units, inner]."""

    outer: int
    units: int
    inner: int


class Split(NamedTuple):
    """How a tensor is divided among programs, the same as `Split` in device_units.cpp.

    Args:
        are_columns: whether the tensor is measured as columns, else as runs.
        units: the number of columns, or of units.
        neighbours: the number of columns of a unit; 1 for runs.
        steps: the number of blocks in a part.
        parts: the number of parts.
        programs: the number of programs that measure.
    """

    are_columns: bool
    units: int
    neighbours: int
    steps: int
    parts: int
    programs: int

    @property
    def numbers(self) -> int:
        """The float64 that hold the units of all parts."""
        return self.parts * self.units * COLUMNS


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
            _merge(units, *_measure_parts(found, axis))
    return True


def writer(
    measure_moments: Callable[[Tensor], bool], by_row: Sequence[Tensor | None], axes: Mapping[int, int], row: int
) -> Callable[[Tensor], bool]:
    """A function that merges a tensor into a row and into its units, or rejects the tensor and returns False.

    Args:
        measure_moments: merges a tensor into the moments of the row, or rejects the tensor and returns False.
        by_row: the present units of each row, as for `merge_into`; None for a row without units yet.
        axes: the dimension of the units of each row that has units; a negative one counts from the end.
        row: the index of the row.
    """

    def write(tensor: Tensor) -> bool:
        units = by_row[row]
        found = None if units is None or row not in axes else _find(units, tensor, axes[row])
        if units is None or found is None or kernels.is_capturing(units.device):
            return False
        if not found[1]:
            return measure_moments(tensor)
        with _current(units):
            # Measure the units first: nothing has been merged yet if that raises, or if the moments are rejected.
            parts, split = _measure_parts(found, axes[row])
            if not measure_moments(found[2]):
                return False
            try:
                _merge(units, parts, split)
            except Exception:
                # The moments were accepted, so the fallback would measure them twice.
                _merge_in_torch(units, parts, split)
        return True

    return write


def kernels_of(dtype: torch.dtype) -> tuple[tuple[Any, dict[str, int]], ...]:
    """The kernels that measure columns, that measure runs and that merge parts, each with the values of its constants."""
    code = CODES[dtype]
    return (
        (triton_units.measure_columns, {"CODE": code, "UNITS": COLUMN_UNITS, "ROWS": COLUMN_ROWS}),
        (triton_units.measure_runs, {"CODE": code, "BLOCK": RUN_BLOCK}),
        (triton_units.merge_parts, _MERGING),
    )


def division() -> tuple[int, int, int, int, int]:
    """The numbers of a `UnitDivision` of the compiled part, by which it divides a tensor as `Split` says."""
    return _PROGRAMS, _SHORTEST, COLUMN_UNITS, COLUMN_ROWS, RUN_BLOCK


def usual_numbers() -> int:
    """The float64 that hold the units of all parts of most tensors: 4 MiB."""
    return _PROGRAMS * COLUMN_UNITS * COLUMNS


def split_of(tensor: Tensor, axis: int) -> Split | None:
    """How a tensor is divided along an axis; None for a tensor without elements or with gaps, which is copied before."""
    return _split(_layout(tensor, axis % tensor.ndim)) if tensor.numel() and is_dense(tensor) else None


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


def _split(layout: _Layout) -> Split:
    outer, many, inner = layout
    are_columns = inner < _SHORTEST
    neighbours = inner if are_columns else 1
    units = many * neighbours
    blocks = -(-units // COLUMN_UNITS) if are_columns else units
    length = -(-outer // COLUMN_ROWS) if are_columns else -(-outer * inner // RUN_BLOCK)
    steps = max(1, -(-length * blocks // _PROGRAMS))
    parts = -(-length // steps)
    return Split(are_columns, units, neighbours, steps, parts, parts * blocks)


def _measure_parts(found: Found, axis: int) -> tuple[Tensor, Split]:
    """The units of parts of a tensor, float64 [parts, units * neighbours, 4], and how the tensor is divided into parts."""
    address, _, tensor = found
    layout = _layout(tensor, axis % tensor.ndim)
    split = _split(layout)
    parts = torch.empty(split.parts, split.units, COLUMNS, dtype=torch.float64, device=tensor.device)
    columns, runs, _ = kernels_of(tensor.dtype)
    kernel, constants = columns if split.are_columns else runs
    shape = (layout.outer, split.units) if split.are_columns else layout
    _launch(kernel, split.programs, parts, address, *shape, split.steps, parts.data_ptr(), **constants)
    return parts, split


def _merge(units: Tensor, parts: Tensor, split: Split) -> None:
    numbers = (parts.data_ptr(), split.parts, len(units), split.neighbours, units.data_ptr(), 1)
    _launch(triton_units.merge_parts, -(-len(units) // COLUMN_UNITS), units, *numbers, **_MERGING)


def _merge_in_torch(units: Tensor, parts: Tensor, split: Split) -> None:
    """As `_merge`, for a device on which the kernel could not be launched."""
    each = parts.view(split.parts, len(units), split.neighbours, COLUMNS)
    merged = each.sum((0, 2))
    merged[:, ABS_MAX] = each[..., ABS_MAX].amax((0, 2))
    units.copy_(reference.merge(units, merged))
