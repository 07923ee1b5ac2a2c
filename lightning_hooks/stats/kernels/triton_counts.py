"""The Triton code that counts the elements of tensors in signed log2 buckets, those of `stats/histogram.py`.

A program counts a span of blocks, and then adds its counts to those of the row. The counts are integers in float64, so their
sums are exact, and do not depend on the order in which programs add.

Counting in all 509 buckets takes about four times as long as counting in 64. So a program counts 31 powers of two of each sign,
downwards from 16 times the largest magnitude at the beginning of its span, and zeros. Only if a block has elements outside of
these buckets, the block is counted again, in all buckets.
"""

import triton
import triton.language as tl

from lightning_hooks.stats.kernels.triton_code import _listed, _part, _pointer, _whole

SIDE = tl.constexpr(254)  # buckets of each sign
BUCKETS = tl.constexpr(512)  # the least power of two that is not below the number of buckets
FEW = tl.constexpr(64)  # buckets of most blocks: 31 of each sign, one of zeros, and the last one for all other elements
NEAR = tl.constexpr(31)
ABOVE = tl.constexpr(4)  # powers of two that are counted above the largest magnitude at the beginning of a span


@triton.jit
def _exponents(x):
    """The exponent of each element in float32: 0 below the normal numbers, 1 to 254, and 255 if it is not finite."""
    if x.dtype == tl.float64:
        exponent = ((x.to(tl.int64, bitcast=True) >> 52) & 0x7FF).to(tl.int32)
        # Magnitudes above the range of float32 belong to the outermost buckets.
        return tl.where(exponent == 0x7FF, 255, tl.minimum(tl.maximum(exponent - (1023 - 127), 0), 254))
    else:
        return (x.to(tl.int32, bitcast=True) >> 23) & 0xFF


@triton.jit
def _is_negative(x):
    if x.dtype == tl.float64:
        return x.to(tl.int64, bitcast=True) < 0
    else:
        return x.to(tl.int32, bitcast=True) < 0


@triton.jit
def _few(x, top):
    """The bucket of each element among few: 0 of zeros, then those of positive and those of negative numbers, FEW - 1 else."""
    exponent = _exponents(x)
    below = top - exponent
    inside = (below >= 0) & (below < NEAR) & (exponent > 0) & (exponent < 255)
    bucket = tl.where(_is_negative(x), 1 + NEAR, 1) + below
    return tl.where(exponent == 0, 0, tl.where(inside, bucket, FEW - 1))


@triton.jit
def _all(x):
    """The bucket of each element among all. Elements that are not finite are masked."""
    exponent = _exponents(x)
    exponent = tl.where(exponent == 255, 0, exponent)
    return tl.where(_is_negative(x), -exponent, exponent) + SIDE


@triton.jit
def _count_span(pointer, before, size, start, steps, target, PAIRED: tl.constexpr, BLOCK: tl.constexpr, SMALL: tl.constexpr):
    """Adds the counts of up to `steps` consecutive blocks to those at `target`."""
    end = tl.minimum(size, start + steps * BLOCK)
    head = _exponents(_part(pointer, before, start, end, PAIRED, SMALL))
    # With at least NEAR, no bucket of zero or of a negative exponent is among few.
    top = tl.minimum(tl.maximum(tl.max(tl.where(head < 255, head, 0), axis=0) + ABOVE, NEAR), 254)
    few = tl.zeros((FEW,), tl.int32)
    wide = tl.zeros((BUCKETS,), tl.int32)
    bucket = tl.arange(0, FEW)
    whole_end = start + (end - start) // BLOCK * BLOCK
    for at in range(start, whole_end, BLOCK):
        x = _whole(pointer, before, at, PAIRED, BLOCK)
        counts = tl.histogram(_few(x, top), FEW)
        if tl.sum(tl.where(bucket == FEW - 1, counts, 0), axis=0) == 0:
            few += counts
        else:
            wide += tl.histogram(_all(x), BUCKETS, mask=_exponents(x) < 255)
    for at in range(whole_end, end, SMALL):
        x = _part(pointer, before, at, end, PAIRED, SMALL)
        wide += tl.histogram(_all(x), BUCKETS, mask=(_exponents(x) < 255) & (at + tl.arange(0, SMALL) < end))
    below = bucket - tl.where(bucket > NEAR, 1 + NEAR, 1)
    apart = tl.where(bucket == 0, 0, tl.where(bucket > NEAR, below - top, top - below))
    tl.atomic_add(target + apart + SIDE, few.to(tl.float64), mask=few > 0, sem="relaxed")
    tl.atomic_add(target + tl.arange(0, BUCKETS), wide.to(tl.float64), mask=wide > 0, sem="relaxed")


@triton.jit(do_not_specialize=["address", "size", "steps", "counts"])
def count_one(address, size, steps, counts, CODE: tl.constexpr, BLOCK: tl.constexpr, SMALL: tl.constexpr):
    """Adds the counts of one tensor to those of a row. One program counts one span.

    Args:
        address: the address of the first element, a multiple of 16.
        size: the number of elements.
        steps: the number of blocks in a span.
        counts: the address of float64 [509], written.
        CODE: the code of the dtype.
        BLOCK: the number of elements in a block.
        SMALL: the number of elements in a block at the end of a span.
    """
    pointer = _pointer(address, CODE)
    start = tl.program_id(0).to(tl.int64) * steps * BLOCK
    _count_span(pointer, pointer, size, start, steps, counts.to(tl.pointer_type(tl.float64)), False, BLOCK, SMALL)


@triton.jit(do_not_specialize=["table", "tensors", "steps", "state"])
def count_list(
    table, tensors, steps, state, CODE: tl.constexpr, PAIRED: tl.constexpr, BLOCK: tl.constexpr, SMALL: tl.constexpr
):
    """Adds the counts of tensors of one dtype, or with `PAIRED` of differences of pairs, to those of their rows.

    Args:
        table: the address of int64 numbers: the addresses, the sizes, the first programs, the addresses of the subtracted
            tensors and the offsets of the counts in the state, each [tensors]; then the tensor of each program.
        tensors: the number of tensors.
        steps: the number of blocks in a span.
        state: the address of a float64 state, written.
        CODE: the code of the dtype.
        PAIRED: whether differences are counted.
        BLOCK: the number of elements in a block.
        SMALL: the number of elements in a block at the end of a span.
    """
    program = tl.program_id(0).to(tl.int64)
    tensor, pointer, before, size, start = _listed(program, table, tensors, steps, 5, CODE, BLOCK)
    entries = table.to(tl.pointer_type(tl.int64))
    target = state.to(tl.pointer_type(tl.float64)) + tl.load(entries + 4 * tensors + tensor)
    _count_span(pointer, before, size, start, steps, target, PAIRED, BLOCK, SMALL)


@triton.jit(do_not_specialize=["table", "state"])
def clear_counts(table, state, BUCKETS: tl.constexpr):
    """Sets the counts of rows to zero. One program clears one row.

    Args:
        table: the address of int64 numbers, the offset of the counts of each row in the state.
        state: the address of a float64 state, written.
        BUCKETS: a power of two that is not below the number of buckets.
    """
    offset = tl.load(table.to(tl.pointer_type(tl.int64)) + tl.program_id(0))
    bucket = tl.arange(0, BUCKETS)
    tl.store(state.to(tl.pointer_type(tl.float64)) + offset + bucket, 0.0, mask=bucket < 509)
