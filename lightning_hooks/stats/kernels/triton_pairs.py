"""The Triton code that compares pairs of tensors: the sums of their products and of their squares.

A program adds up one span of a pair, and a second kernel adds up the spans of each pair in order. No addition is atomic, so the
sums are the same at every launch. Products and sums are in float64, in which the product of two float32 numbers is exact.
"""

import triton
import triton.language as tl

from lightning_hooks.stats.kernels.triton_code import LANES, _lane_sums, _listed, _part, _whole

COLUMNS = 3  # the sum of the products, that of the squares of the second tensor, and that of the squares of the first
CHUNK = 256  # spans whose sums a program of `merge_products` reads together


@triton.jit(do_not_specialize=["table", "tensors", "steps", "rows"])
def compare_list(table, tensors, steps, rows, CODE: tl.constexpr, BLOCK: tl.constexpr, SMALL: tl.constexpr):
    """Writes the sums of spans of pairs of tensors with one dtype and equal layouts. One program adds up one span.

    Args:
        table: as for `measure_list`, with the addresses of the second tensors instead of the subtracted ones.
        tensors: the number of pairs.
        steps: the number of blocks in a span.
        rows: the address of float64 [programs, 3], written.
        CODE: the code of the dtype.
        BLOCK: the number of elements in a block.
        SMALL: the number of elements that a program reads together.
    """
    program = tl.program_id(0).to(tl.int64)
    _, first, second, size, start = _listed(program, table, tensors, steps, 4, CODE, BLOCK)
    end = tl.minimum(start + steps * BLOCK, size)
    both = tl.zeros((LANES,), tl.float64)
    left = tl.zeros((LANES,), tl.float64)
    right = tl.zeros((LANES,), tl.float64)
    whole_end = start + (end - start) // SMALL * SMALL
    for at in range(start, whole_end, SMALL):
        x = _whole(first, first, at, False, SMALL).to(tl.float64)
        y = _whole(second, second, at, False, SMALL).to(tl.float64)
        both += _lane_sums(x * y, SMALL)
        left += _lane_sums(x * x, SMALL)
        right += _lane_sums(y * y, SMALL)
    for at in range(whole_end, end, SMALL):
        x = _part(first, first, at, end, False, SMALL).to(tl.float64)
        y = _part(second, second, at, end, False, SMALL).to(tl.float64)
        both += _lane_sums(x * y, SMALL)
        left += _lane_sums(x * x, SMALL)
        right += _lane_sums(y * y, SMALL)
    target = rows.to(tl.pointer_type(tl.float64)) + program * 3
    tl.store(target, tl.sum(both, axis=0))
    tl.store(target + 1, tl.sum(right, axis=0))
    tl.store(target + 2, tl.sum(left, axis=0))


@triton.jit(do_not_specialize=["table", "targets", "segments", "rows", "out"])
def merge_products(table, targets, segments, rows, out, CHUNK: tl.constexpr):
    """Adds up the sums of the spans of each pair, and overwrites the sums of the pair. One program serves one pair.

    Args:
        table: as for `merge_rows`.
        targets: the number of pairs.
        segments: the number of segments.
        rows: the address of float64 [spans, 3].
        out: the address of a float64 state, written.
        CHUNK: the number of spans that are read together.
    """
    row = tl.program_id(0)
    entries = table.to(tl.pointer_type(tl.int64))
    target = out.to(tl.pointer_type(tl.float64)) + tl.load(entries + row)
    starts = entries + 3 * targets + 1
    lane = tl.arange(0, CHUNK)
    both = tl.zeros((CHUNK,), tl.float64)
    left = tl.zeros((CHUNK,), tl.float64)
    right = tl.zeros((CHUNK,), tl.float64)
    for segment in range(tl.load(entries + 2 * targets + row), tl.load(entries + 2 * targets + row + 1)):
        last = tl.load(starts + segments + segment)
        for at in range(tl.load(starts + segment), last, CHUNK):
            inside = at + lane < last
            part = rows.to(tl.pointer_type(tl.float64)) + (at + lane) * 3
            both += tl.load(part, mask=inside, other=0.0)
            right += tl.load(part + 1, mask=inside, other=0.0)
            left += tl.load(part + 2, mask=inside, other=0.0)
    tl.store(target, tl.sum(both, axis=0))
    tl.store(target + 1, tl.sum(right, axis=0))
    tl.store(target + 2, tl.sum(left, axis=0))
