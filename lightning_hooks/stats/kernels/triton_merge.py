"""The Triton code that merges partial rows of moments, which `triton_code` writes, into rows."""

import triton
import triton.language as tl

from lightning_hooks.stats.kernels.triton_code import store_row

CHUNK = 256  # partial rows that a program reads together


@triton.jit(do_not_specialize=["table", "targets", "segments", "rows", "out", "merging"])
def merge_rows(table, targets, segments, rows, out, merging, CHUNK: tl.constexpr):
    """Merges partial rows into rows, by Chan's rule for any number of parts, in two passes. One program merges one row.

    A segment is the partial rows of one tensor. Several tensors may have the same row.

    Args:
        table: the address of int64 numbers: of all rows the offsets in `out`, the numbers of elements in their parts, and the
            first segments (and the end of the last row's segments); then of all segments the first partial rows and the ends.
        targets: the number of rows.
        segments: the number of segments.
        rows: the address of float64 [parts, 9].
        out: the address of a float64 state, written.
        merging: 1 to merge with the present rows, 0 to overwrite them.
        CHUNK: the number of partial rows that are read together.
    """
    row = tl.program_id(0)
    entries = table.to(tl.pointer_type(tl.int64))
    parts = rows.to(tl.pointer_type(tl.float64))
    target = out.to(tl.pointer_type(tl.float64)) + tl.load(entries + row)
    first = tl.load(entries + 2 * targets + row)
    end = tl.load(entries + 2 * targets + row + 1)
    starts = entries + 3 * targets + 1
    kept = merging != 0
    present = tl.load(target, mask=kept, other=0.0)
    present_mean = tl.load(target + 1, mask=kept, other=0.0)
    present_m2 = tl.load(target + 2, mask=kept, other=0.0)
    abs_sum = tl.load(target + 3, mask=kept, other=0.0)
    low = tl.load(target + 4, mask=kept, other=float("inf"))
    high = tl.load(target + 5, mask=kept, other=float("-inf"))
    zeros = tl.load(target + 6, mask=kept, other=0.0)
    nonfinite = tl.load(target + 7, mask=kept, other=0.0)
    underflow = tl.load(target + 8, mask=kept, other=0.0)
    nans = (low != low).to(tl.int32)
    count = present + tl.load(entries + targets + row).to(tl.float64)
    # Add weighted means instead of differences of means, so that an infinite mean stays infinite.
    mean = present / tl.maximum(count, 1.0) * present_mean
    for segment in range(first, end):
        last = tl.load(starts + segments + segment)
        for at in range(tl.load(starts + segment), last, CHUNK):
            inside = at + tl.arange(0, CHUNK) < last
            part = parts + (at + tl.arange(0, CHUNK)) * 9
            mean += tl.sum(tl.load(part, mask=inside, other=0.0) / count * tl.load(part + 1, mask=inside, other=0.0), axis=0)
            abs_sum += tl.sum(tl.load(part + 3, mask=inside, other=0.0), axis=0)
            lows = tl.load(part + 4, mask=inside, other=float("inf"))
            nans += tl.sum((lows != lows).to(tl.int32), axis=0)
            low = tl.minimum(low, tl.min(lows, axis=0))
            high = tl.maximum(high, tl.max(tl.load(part + 5, mask=inside, other=float("-inf")), axis=0))
            zeros += tl.sum(tl.load(part + 6, mask=inside, other=0.0), axis=0)
            nonfinite += tl.sum(tl.load(part + 7, mask=inside, other=0.0), axis=0)
            underflow += tl.sum(tl.load(part + 8, mask=inside, other=0.0), axis=0)
    m2 = present_m2 + tl.where(present == 0, 0.0, present * (present_mean - mean) * (present_mean - mean))
    for segment in range(first, end):
        last = tl.load(starts + segments + segment)
        for at in range(tl.load(starts + segment), last, CHUNK):
            inside = at + tl.arange(0, CHUNK) < last
            part = parts + (at + tl.arange(0, CHUNK)) * 9
            counts = tl.load(part, mask=inside, other=0.0)
            apart = tl.load(part + 1, mask=inside, other=0.0) - mean
            between = tl.where(inside, counts * apart * apart, 0.0)
            m2 += tl.sum(tl.load(part + 2, mask=inside, other=0.0) + between, axis=0)
    store_row(target, count, mean, m2, abs_sum, low, high, nans, zeros, nonfinite, underflow)
