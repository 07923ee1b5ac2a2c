"""The Triton code that measures a tensor within compiled code, whose launches the compiler makes, also in CUDA graphs.

A launch that is replayed has the arguments of its first time. So the row is found through a tensor on the device, its place: an
int64 tensor with the address of the row, or 0 for no row, and the number of measurements since it was set.
"""

import triton
import triton.language as tl

from lightning_hooks.stats.kernels.triton_code import _least_normal, _span
from lightning_hooks.stats.kernels.triton_merge import merge_rows


@triton.jit
def measure_at_place(
    data,
    size,
    steps,
    place,
    rows,
    table,
    CODE: tl.constexpr,
    MAGNITUDES: tl.constexpr,
    BLOCK: tl.constexpr,
    SMALL: tl.constexpr,
):
    """Writes the partial rows of one tensor, and the table for `merge_at_place`. One program measures one span.

    Args:
        data: the elements.
        size: the number of elements.
        steps: the number of blocks in a span.
        place: the place of the row; nothing is measured for the address 0.
        rows: float64 [programs, 9], written.
        table: int64 [6], written.
        CODE: the code of the dtype.
        MAGNITUDES: whether the sum of magnitudes and underflow are measured; if not, they are NaN.
        BLOCK: the number of elements in a block.
        SMALL: the number of elements in a block at the end of a span or in float64.
    """
    row = tl.load(place)
    if row != 0:
        program = tl.program_id(0).to(tl.int64)
        elements = tl.full((), 0, tl.int64) + size
        start = program * steps * BLOCK
        _span(
            data, data, elements, start, steps, rows + program * 9, _least_normal(CODE, False), MAGNITUDES, False, BLOCK, SMALL
        )
        if program == 0:
            # As for `merge_rows`: the offset of the row from the address 0, its elements, its segments, and their partial rows.
            tl.store(table, row // 8)
            tl.store(table + 1, elements)
            tl.store(table + 2, 0)
            tl.store(table + 3, 1)
            tl.store(table + 4, 0)
            tl.store(table + 5, tl.num_programs(0))


@triton.jit
def merge_at_place(rows, table, place, out, COUNTS: tl.constexpr, CHUNK: tl.constexpr):
    """Merges the partial rows of one tensor into the row at a place, in one program.

    Args:
        rows: float64 [programs, 9].
        table: int64 [6].
        place: the place of the row.
        out: with `COUNTS` the place, whose number of measurements is written; otherwise float32 [1], to which 0 is written.
        COUNTS: see `out`.
        CHUNK: the number of partial rows that are read together.
    """
    if tl.load(place) != 0:
        none = tl.full((), 0, tl.int64)
        merge_rows(table, none + 1, none + 1, rows, none, none + 1, CHUNK)
        if COUNTS:
            tl.store(out + 1, tl.load(out + 1) + 1)
    if not COUNTS:
        tl.store(out, 0.0)
