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
    lane = tl.arange(0, CHUNK)
    # The present row is the first part of the first lane.
    own = kept & (lane == 0)
    present = tl.load(target, mask=kept, other=0.0)
    count = present + tl.load(entries + targets + row).to(tl.float64)
    # Add weighted means instead of differences of means, so that an infinite mean stays infinite.
    means = present / tl.maximum(count, 1.0) * tl.load(target + 1 + 0 * lane, mask=own, other=0.0)
    sizes = tl.load(target + 3 + 0 * lane, mask=own, other=0.0)
    lows = tl.load(target + 4 + 0 * lane, mask=own, other=float("inf"))
    highs = tl.load(target + 5 + 0 * lane, mask=own, other=float("-inf"))
    zeros = tl.load(target + 6 + 0 * lane, mask=own, other=0.0)
    nonfinite = tl.load(target + 7 + 0 * lane, mask=own, other=0.0)
    underflow = tl.load(target + 8 + 0 * lane, mask=own, other=0.0)
    nans = (lows != lows).to(tl.int32)
    for segment in range(first, end):
        last = tl.load(starts + segments + segment)
        for at in range(tl.load(starts + segment), last, CHUNK):
            inside = at + lane < last
            part = parts + (at + lane) * 9
            means += tl.load(part, mask=inside, other=0.0) / count * tl.load(part + 1, mask=inside, other=0.0)
            sizes += tl.load(part + 3, mask=inside, other=0.0)
            minima = tl.load(part + 4, mask=inside, other=float("inf"))
            nans += (minima != minima).to(tl.int32)
            lows = tl.minimum(lows, minima)
            highs = tl.maximum(highs, tl.load(part + 5, mask=inside, other=float("-inf")))
            zeros += tl.load(part + 6, mask=inside, other=0.0)
            nonfinite += tl.load(part + 7, mask=inside, other=0.0)
            underflow += tl.load(part + 8, mask=inside, other=0.0)
    mean = tl.sum(means, axis=0)
    apart = tl.load(target + 1, mask=kept, other=0.0) - mean
    between = tl.where(present == 0, 0.0, present * apart * apart)
    squares = tl.where(lane == 0, tl.load(target + 2, mask=kept, other=0.0) + between, 0.0)
    for segment in range(first, end):
        last = tl.load(starts + segments + segment)
        for at in range(tl.load(starts + segment), last, CHUNK):
            inside = at + lane < last
            part = parts + (at + lane) * 9
            counts = tl.load(part, mask=inside, other=0.0)
            away = tl.load(part + 1, mask=inside, other=0.0) - mean
            squares += tl.where(inside, tl.load(part + 2, mask=inside, other=0.0) + counts * away * away, 0.0)
    m2 = tl.sum(squares, axis=0)
    abs_sum = tl.sum(sizes, axis=0)
    low, high = tl.min(lows, axis=0), tl.max(highs, axis=0)
    nans_in_all = tl.sum(nans, axis=0)
    zero, odd, small = tl.sum(zeros, axis=0), tl.sum(nonfinite, axis=0), tl.sum(underflow, axis=0)
    store_row(target, count, mean, m2, abs_sum, low, high, nans_in_all, zero, odd, small)
