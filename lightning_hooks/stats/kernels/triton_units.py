"""The Triton code that measures the units of a tensor [outer, units, inner] on the device.

A program adds up a part of the tensor for some units, and a second kernel merges the parts in order. No addition is atomic, so
the numbers are the same at every launch. If inner is 1, a program takes a block of neighbouring units and several rows, so that
loads are wide. Otherwise a program takes one unit and a part of its runs. Short runs would leave lanes idle, so their elements
are measured as units of a tensor [outer, units * inner], and the second kernel merges neighbours. Lanes add up in float64,
which suits all magnitudes.
"""

import triton
import triton.language as tl

from lightning_hooks.stats.kernels.triton_code import _widened

COLUMN_UNITS = 128  # units that a program of `measure_columns` measures
COLUMN_ROWS = 32  # rows that a program of `measure_columns` reads together
RUN_BLOCK = 1024  # elements that a program of `measure_runs` reads together


@triton.jit
def _typed(address, CODE: tl.constexpr):
    if CODE == 0:
        return address.to(tl.pointer_type(tl.float32))
    elif CODE == 1:
        return address.to(tl.pointer_type(tl.float16))
    elif CODE == 2:
        return address.to(tl.pointer_type(tl.bfloat16))
    else:
        return address.to(tl.pointer_type(tl.float64))


@triton.jit
def _store(target, inside, total, square, most, nans, zeros):
    """Writes units in the order of the schema. `most` ignores NaN, which `nans` counts."""
    tl.store(target, total, mask=inside)
    tl.store(target + 1, square, mask=inside)
    tl.store(target + 2, tl.where(nans > 0, float("nan"), most), mask=inside)
    tl.store(target + 3, zeros, mask=inside)


@triton.jit(do_not_specialize=["address", "outer", "units", "steps", "parts"])
def measure_columns(address, outer, units, steps, parts, CODE: tl.constexpr, UNITS: tl.constexpr, ROWS: tl.constexpr):
    """Measures the units of parts of a tensor [outer, units]. One program measures a block of units in one part.

    Args:
        address: the address of the first element.
        outer: the number of rows.
        units: the number of units.
        steps: the number of blocks of ROWS rows in a part.
        parts: the address of float64 [parts, units, 4], written.
        CODE: the code of the dtype.
        UNITS: the number of units of a program.
        ROWS: the number of rows that are read together.
    """
    blocks = (units + UNITS - 1) // UNITS
    program = tl.program_id(0).to(tl.int64)
    part = program // blocks
    unit = program % blocks * UNITS + tl.arange(0, UNITS)
    is_unit = unit < units
    pointer = _typed(address, CODE)
    total = tl.zeros((UNITS,), tl.float64)
    square = tl.zeros((UNITS,), tl.float64)
    most = tl.zeros((UNITS,), tl.float64)
    nans = tl.zeros((UNITS,), tl.float64)
    zeros = tl.zeros((UNITS,), tl.float64)
    for step in range(steps):
        row = (part * steps + step) * ROWS + tl.arange(0, ROWS)
        inside = (row[:, None] < outer) & is_unit[None, :]
        x = _widened(tl.load(pointer + row[:, None] * units + unit[None, :], mask=inside, other=0.0)).to(tl.float64)
        total += tl.sum(x, axis=0)
        square += tl.sum(x * x, axis=0)
        most = tl.maximum(most, tl.max(tl.where(x == x, tl.abs(x), 0.0), axis=0))
        nans += tl.sum((x != x).to(tl.float64), axis=0)
        zeros += tl.sum(((x == 0) & inside).to(tl.float64), axis=0)
    target = parts.to(tl.pointer_type(tl.float64)) + (part * units + unit) * 4
    _store(target, is_unit, total, square, most, nans, zeros)


@triton.jit(do_not_specialize=["address", "outer", "units", "inner", "steps", "parts"])
def measure_runs(address, outer, units, inner, steps, parts, CODE: tl.constexpr, BLOCK: tl.constexpr):
    """Measures the units of parts of a tensor [outer, units, inner]. One program measures one unit in one part.

    Args:
        address: the address of the first element.
        outer: the number of slices.
        units: the number of units.
        inner: the number of neighbouring elements of a unit, a run.
        steps: the number of blocks of BLOCK elements of a unit in a part.
        parts: the address of float64 [parts, units, 4], written.
        CODE: the code of the dtype.
        BLOCK: the number of elements that are read together.
    """
    program = tl.program_id(0).to(tl.int64)
    part = program // units
    unit = program % units
    pointer = _typed(address, CODE) + unit * inner
    lane = tl.arange(0, BLOCK)
    total = tl.full((), 0.0, tl.float64)
    square, most, nans, zeros = total, total, total, total
    for step in range(steps):
        # `at` is the index among the elements of the unit, `offset` the distance in memory from the first of these elements.
        at = (part * steps + step) * BLOCK + lane
        inside = at < outer * inner
        offset = at // inner * (units * inner) + at % inner
        x = _widened(tl.load(pointer + offset, mask=inside, other=0.0)).to(tl.float64)
        total += tl.sum(x, axis=0)
        square += tl.sum(x * x, axis=0)
        most = tl.maximum(most, tl.max(tl.where(x == x, tl.abs(x), 0.0), axis=0))
        nans += tl.sum((x != x).to(tl.float64), axis=0)
        zeros += tl.sum(((x == 0) & inside).to(tl.float64), axis=0)
    target = parts.to(tl.pointer_type(tl.float64)) + program * 4
    _store(target, unit < units, total, square, most, nans, zeros)


@triton.jit(do_not_specialize=["parts", "many", "units", "neighbours", "out", "merging"])
def merge_parts(parts, many, units, neighbours, out, merging, UNITS: tl.constexpr):
    """Merges the parts of units, in order. One program merges a block of units.

    Args:
        parts: the address of float64 [many, units, neighbours, 4].
        many: the number of parts.
        units: the number of units.
        neighbours: the number of columns that were measured for each unit; 1 unless its runs are short.
        out: the address of float64 [units, 4], written.
        merging: 1 to merge with the present units, 0 to overwrite them.
        UNITS: the number of units of a program.
    """
    unit = tl.program_id(0).to(tl.int64) * UNITS + tl.arange(0, UNITS)
    inside = unit < units
    target = out.to(tl.pointer_type(tl.float64)) + unit * 4
    kept = inside & (merging != 0)
    total = tl.load(target, mask=kept, other=0.0)
    square = tl.load(target + 1, mask=kept, other=0.0)
    most = tl.load(target + 2, mask=kept, other=0.0)
    zeros = tl.load(target + 3, mask=kept, other=0.0)
    nans = (most != most).to(tl.float64)
    most = tl.where(most == most, most, 0.0)
    for neighbour in range(neighbours):
        source = parts.to(tl.pointer_type(tl.float64)) + (unit * neighbours + neighbour) * 4
        for part in range(many):
            here = source + part * units * neighbours * 4
            total += tl.load(here, mask=inside, other=0.0)
            square += tl.load(here + 1, mask=inside, other=0.0)
            largest = tl.load(here + 2, mask=inside, other=0.0)
            nans += (largest != largest).to(tl.float64)
            most = tl.maximum(most, tl.where(largest == largest, largest, 0.0))
            zeros += tl.load(here + 3, mask=inside, other=0.0)
    _store(target, inside, total, square, most, nans, zeros)
