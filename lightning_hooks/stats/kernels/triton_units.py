"""The Triton code that measures the units of a tensor [outer, units, inner] on the device.

A program adds up a part of the tensor for some units, and a second kernel adds the parts in order. Nothing is added atomically,
so the numbers are the same at every launch. Where inner is 1, a program takes a block of neighbouring units and several rows,
so that loads are wide; otherwise one unit and a part of its runs. Lanes add up float64, which is exact for all magnitudes.
"""

import triton
import triton.language as tl

from lightning_hooks.stats.kernels.triton_code import _widened

COLUMN_UNITS = 128  # units of a program where inner is 1
COLUMN_ROWS = 32  # rows that such a program reads together
RUN_BLOCK = 1024  # elements that a program reads together of the runs of one unit


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
    """Writes units in the order of the schema; `most` does not hold the NaN that `nans` counts."""
    tl.store(target, total, mask=inside)
    tl.store(target + 1, square, mask=inside)
    tl.store(target + 2, tl.where(nans > 0, float("nan"), most), mask=inside)
    tl.store(target + 3, zeros, mask=inside)


@triton.jit(do_not_specialize=["address", "outer", "units", "steps", "parts"])
def measure_columns(address, outer, units, steps, parts, CODE: tl.constexpr, UNITS: tl.constexpr, ROWS: tl.constexpr):
    """The units of a part of the rows of a tensor [outer, units]; one program per part and block of units.

    Args:
        address: of the first element.
        outer: rows.
        units: columns.
        steps: blocks of ROWS rows in a part.
        parts: address of float64 [parts, units, 4], written.
        CODE: of the dtype.
        UNITS: units of a program.
        ROWS: rows read together.
    """
    blocks = (units + UNITS - 1) // UNITS
    program = tl.program_id(0).to(tl.int64)
    part = program // blocks
    unit = program % blocks * UNITS + tl.arange(0, UNITS)
    known = unit < units
    pointer = _typed(address, CODE)
    total = tl.zeros((UNITS,), tl.float64)
    square = tl.zeros((UNITS,), tl.float64)
    most = tl.zeros((UNITS,), tl.float64)
    nans = tl.zeros((UNITS,), tl.float64)
    zeros = tl.zeros((UNITS,), tl.float64)
    for step in range(steps):
        row = (part * steps + step) * ROWS + tl.arange(0, ROWS)
        inside = (row[:, None] < outer) & known[None, :]
        x = _widened(tl.load(pointer + row[:, None] * units + unit[None, :], mask=inside, other=0.0)).to(tl.float64)
        total += tl.sum(x, axis=0)
        square += tl.sum(x * x, axis=0)
        most = tl.maximum(most, tl.max(tl.where(x == x, tl.abs(x), 0.0), axis=0))
        nans += tl.sum((x != x).to(tl.float64), axis=0)
        zeros += tl.sum(((x == 0) & inside).to(tl.float64), axis=0)
    target = parts.to(tl.pointer_type(tl.float64)) + (part * units + unit) * 4
    _store(target, known, total, square, most, nans, zeros)


@triton.jit(do_not_specialize=["address", "outer", "units", "inner", "steps", "parts"])
def measure_runs(address, outer, units, inner, steps, parts, CODE: tl.constexpr, BLOCK: tl.constexpr):
    """The units of a part of a tensor [outer, units, inner]; one program per part and unit.

    Args:
        address: of the first element.
        outer: slices.
        units: units in each.
        inner: neighbouring elements of a unit.
        steps: blocks of BLOCK elements of a unit in a part.
        parts: address of float64 [parts, units, 4], written.
        CODE: of the dtype.
        BLOCK: elements read together.
    """
    program = tl.program_id(0).to(tl.int64)
    part = program // units
    unit = program % units
    pointer = _typed(address, CODE) + unit * inner
    lane = tl.arange(0, BLOCK)
    total = tl.full((), 0.0, tl.float64)
    square, most, nans, zeros = total, total, total, total
    for step in range(steps):
        at = (part * steps + step) * BLOCK + lane  # among the elements of the unit
        inside = at < outer * inner
        place = at // inner * (units * inner) + at % inner
        x = _widened(tl.load(pointer + place, mask=inside, other=0.0)).to(tl.float64)
        total += tl.sum(x, axis=0)
        square += tl.sum(x * x, axis=0)
        most = tl.maximum(most, tl.max(tl.where(x == x, tl.abs(x), 0.0), axis=0))
        nans += tl.sum((x != x).to(tl.float64), axis=0)
        zeros += tl.sum(((x == 0) & inside).to(tl.float64), axis=0)
    target = parts.to(tl.pointer_type(tl.float64)) + program * 4
    _store(target, unit < units, total, square, most, nans, zeros)


@triton.jit(do_not_specialize=["parts", "many", "units", "out", "merging"])
def merge_parts(parts, many, units, out, merging, UNITS: tl.constexpr):
    """Merges parts of units in their order; one program per block of units.

    Args:
        parts: address of float64 [many, units, 4].
        many: how many there are.
        units: in each.
        out: address of float64 [units, 4], written.
        merging: 1 where the present units count too, 0 where they are overwritten.
        UNITS: units of a program.
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
    source = parts.to(tl.pointer_type(tl.float64)) + unit * 4
    for part in range(many):
        here = source + part * units * 4
        total += tl.load(here, mask=inside, other=0.0)
        square += tl.load(here + 1, mask=inside, other=0.0)
        found = tl.load(here + 2, mask=inside, other=0.0)
        nans += (found != found).to(tl.float64)
        most = tl.maximum(most, tl.where(found == found, found, 0.0))
        zeros += tl.load(here + 3, mask=inside, other=0.0)
    _store(target, inside, total, square, most, nans, zeros)
