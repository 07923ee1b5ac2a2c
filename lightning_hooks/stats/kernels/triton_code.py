"""The Triton code that runs on the device: it reduces blocks of elements to rows of moments, and rows of moments to one.

A block is loaded once and stays in registers, so its mean is known before the deviations from it are squared. Its values are
first scaled near 1 by a power of two, which is exact and keeps the squares of 1e-38 and of 1e38 inside float32. Sums add eight
elements in the dtype of the block and continue in float64, so their error does not grow with the size, and devices with few
float64 units are not slowed down. Zeros, subnormals and values that are not finite are recognized by their bits, whatever the
compiler flushes.
"""

import triton
import triton.language as tl

BLOCK = 4096
CHUNK = 256  # rows of moments merged together
FLOAT32, FLOAT16, BFLOAT16, FLOAT64 = range(4)


@triton.jit
def _sum(values, BLOCK: tl.constexpr):
    eights = tl.sum(tl.reshape(values, (BLOCK // 8, 8), can_reorder=True), axis=1)
    return tl.sum(eights.to(tl.float64), axis=0)


@triton.jit
def _magnitude_bits(x):
    if x.dtype == tl.float64:
        return x.to(tl.int64, bitcast=True) & 0x7FFFFFFFFFFFFFFF
    elif x.dtype == tl.float32:
        return x.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    else:
        return x.to(tl.int16, bitcast=True).to(tl.int32) & 0x7FFF


@triton.jit
def _widened(x):
    if x.dtype == tl.float64:
        return x
    elif x.dtype == tl.bfloat16:  # by its bits: Triton's interpreter flushes its subnormals
        return (x.to(tl.int16, bitcast=True).to(tl.int32) << 16).to(tl.float32, bitcast=True)
    else:
        return x.to(tl.float32)


@triton.jit
def _scale_of(largest):
    """The power of two that scales a magnitude near 1; the greatest one for zero and subnormals."""
    if largest.dtype == tl.float64:
        exponent = (largest.to(tl.int64, bitcast=True) >> 52) & 0x7FF
        turned = tl.minimum(tl.maximum(2046 - exponent, 1), 2046)
        return (turned << 52).to(tl.float64, bitcast=True)
    else:
        exponent = (largest.to(tl.int32, bitcast=True) >> 23) & 0xFF
        turned = tl.minimum(tl.maximum(254 - exponent, 1), 254)
        return (turned << 23).to(tl.float32, bitcast=True)


@triton.jit
def _join(count, mean, m2, other_count, other_mean, other_m2):
    """Chan's rule. The mean is a weighted sum, not an update by a difference, so that an infinite mean stays infinite."""
    total = count + other_count
    share = other_count / tl.maximum(total, 1.0)
    apart = other_mean - mean
    spread = tl.where((count == 0) | (other_count == 0), 0.0, apart * apart * count * share)
    joined = tl.where(count == 0, other_mean, mean * (count / tl.maximum(total, 1.0)) + other_mean * share)
    return total, joined, m2 + other_m2 + spread


@triton.jit
def _join_many(counts, means, m2s):
    """The same of a vector of rows, not all empty. `tl.reduce` with `_join` is correct too, but slow in the interpreter."""
    count = tl.sum(counts, axis=0)
    mean = tl.sum(counts / count * means, axis=0)
    spread = tl.where(counts == 0, 0.0, counts * (means - mean) * (means - mean))
    return count, mean, tl.sum(m2s + spread, axis=0)


@triton.jit
def _neutral():
    """The moments of no elements."""
    zero, infinity = tl.full((), 0.0, tl.float64), tl.full((), float("inf"), tl.float64)
    return zero, zero, zero, zero, infinity, -infinity, zero, zero, zero


@triton.jit
def _write(target, count, mean, m2, abs_sum, low, high, zeros, nonfinite, underflow):
    tl.store(target, count)
    tl.store(target + 1, mean)
    tl.store(target + 2, m2)
    tl.store(target + 3, abs_sum)
    tl.store(target + 4, low)
    tl.store(target + 5, high)
    tl.store(target + 6, zeros)
    tl.store(target + 7, nonfinite)
    tl.store(target + 8, underflow)


@triton.jit
def _load(pointer, at, size, BLOCK: tl.constexpr):
    lane = tl.arange(0, BLOCK)
    if at + BLOCK <= size:  # without a mask loads are wide
        x = tl.load(pointer + at + lane)
    else:
        x = tl.load(pointer + at + lane, mask=at + lane < size, other=0.0)
    return x


@triton.jit
def _block(
    pointer, before, at, size, MANTISSA: tl.constexpr, INFINITE: tl.constexpr, PAIRED: tl.constexpr, BLOCK: tl.constexpr
):
    """The moments of one block that is not empty, as nine scalars; last the number of NaN."""
    inside = at + tl.arange(0, BLOCK) < size
    x = _load(pointer, at, size, BLOCK)
    if PAIRED:
        x = _widened(x) - _widened(_load(before, at, size, BLOCK))
    bits = _magnitude_bits(x)
    # Four counts, each of at most BLOCK, packed into one sum.
    marks = (bits == 0).to(tl.int64)
    marks += ((bits > 0) & (bits < (1 << MANTISSA))).to(tl.int64) << 16
    marks += (bits >= INFINITE).to(tl.int64) << 32
    marks += (bits > INFINITE).to(tl.int64) << 48
    marks = tl.sum(tl.where(inside, marks, 0), axis=0)
    nonfinite = (marks >> 32) & 0xFFFF
    wide = _widened(x)
    low = tl.min(tl.where(inside, wide, float("inf")), axis=0)
    high = tl.max(tl.where(inside, wide, float("-inf")), axis=0)
    scale = _scale_of(tl.maximum(tl.maximum(-low, high), 0.0))
    near = wide * scale
    count = tl.minimum(size - at, BLOCK).to(tl.float64)
    rough = _sum(near, BLOCK) / count
    centre = rough.to(near.dtype)
    apart = tl.where(inside, near - centre, 0.0)
    rest = _sum(apart, BLOCK) / count  # the distance of the rounded centre from the mean
    m2 = _sum(apart * apart, BLOCK) - count * rest * rest
    m2 = tl.where(m2 < 0.0, 0.0, m2)
    mean = tl.where(nonfinite > 0, rough, centre.to(tl.float64) + rest)
    back = 1.0 / scale.to(tl.float64)
    return (
        count,
        mean * back,
        m2 * back * back,
        _sum(tl.abs(near), BLOCK) * back,
        low.to(tl.float64),
        high.to(tl.float64),
        (marks & 0xFFFF).to(tl.float64),
        nonfinite.to(tl.float64),
        ((marks >> 16) & 0xFFFF).to(tl.float64),
        (marks >> 48) & 0xFFFF,
    )


@triton.jit
def _span(
    pointer,
    before,
    size,
    start,
    steps,
    target,
    MANTISSA: tl.constexpr,
    INFINITE: tl.constexpr,
    PAIRED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The moments of up to `steps` blocks one after the other, written to a row."""
    count, mean, m2, abs_sum, low, high, zeros, nonfinite, underflow = _neutral()
    nans = tl.full((), 0, tl.int64)
    end = tl.minimum(size, start + steps * BLOCK)
    for at in range(start, end, BLOCK):
        n, new, new_m2, sum_b, low_b, high_b, zeros_b, nonfinite_b, underflow_b, nans_b = _block(
            pointer, before, at, size, MANTISSA, INFINITE, PAIRED, BLOCK
        )
        count, mean, m2 = _join(count, mean, m2, n, new, new_m2)
        abs_sum += sum_b
        low = tl.minimum(low, low_b)
        high = tl.maximum(high, high_b)
        zeros += zeros_b
        nonfinite += nonfinite_b
        underflow += underflow_b
        nans += nans_b
    low = tl.where(nans > 0, float("nan"), low)
    high = tl.where(nans > 0, float("nan"), high)
    _write(target, count, mean, m2, abs_sum, low, high, zeros, nonfinite, underflow)


@triton.jit
def _dispatch(address, before, size, start, steps, target, code, PAIRED: tl.constexpr, BLOCK: tl.constexpr):
    # What is measured here is aligned to 16 bytes (the host sees to it), which the compiler cannot know of an address.
    # Differences of the narrower dtypes are numbers of float32.
    if code == 0:
        p32 = tl.multiple_of(address.to(tl.pointer_type(tl.float32)), 16)
        b32 = tl.multiple_of(before.to(tl.pointer_type(tl.float32)), 16)
        _span(p32, b32, size, start, steps, target, 23, 0x7F800000, PAIRED, BLOCK)
    elif code == 1:
        p16 = tl.multiple_of(address.to(tl.pointer_type(tl.float16)), 16)
        b16 = tl.multiple_of(before.to(tl.pointer_type(tl.float16)), 16)
        if PAIRED:
            _span(p16, b16, size, start, steps, target, 23, 0x7F800000, PAIRED, BLOCK)
        else:
            _span(p16, b16, size, start, steps, target, 10, 0x7C00, PAIRED, BLOCK)
    elif code == 2:
        pb16 = tl.multiple_of(address.to(tl.pointer_type(tl.bfloat16)), 16)
        bb16 = tl.multiple_of(before.to(tl.pointer_type(tl.bfloat16)), 16)
        if PAIRED:
            _span(pb16, bb16, size, start, steps, target, 23, 0x7F800000, PAIRED, BLOCK)
        else:
            _span(pb16, bb16, size, start, steps, target, 7, 0x7F80, PAIRED, BLOCK)
    else:
        p64 = tl.multiple_of(address.to(tl.pointer_type(tl.float64)), 16)
        b64 = tl.multiple_of(before.to(tl.pointer_type(tl.float64)), 16)
        _span(p64, b64, size, start, steps, target, 52, 0x7FF0000000000000, PAIRED, BLOCK)


@triton.jit(do_not_specialize=["tensors", "steps"])  # else one more compilation for 1 and for 16
def measure_blocks(table, tensors, steps, rows, PAIRED: tl.constexpr, BLOCK: tl.constexpr):
    """One program per span of blocks, over the blocks of all tensors.

    Where `PAIRED`, the differences from other tensors of the same layout are measured.

    Args:
        table: int64; of every tensor address, size, code of its dtype, offset of its result, and first row (with the end after
            the last one), then of every program its tensor, then, where `PAIRED`, of every tensor the address of the other one.
        tensors: how many there are.
        steps: blocks in a span.
        rows: float64 [programs, 9], written.
        PAIRED: whether differences are measured.
        BLOCK: elements in a block.
    """
    program = tl.program_id(0)
    tensor = tl.load(table + 5 * tensors + 1 + program)
    address = tl.load(table + tensor)
    size = tl.load(table + tensors + tensor)
    code = tl.load(table + 2 * tensors + tensor)
    first = tl.load(table + 4 * tensors + tensor)
    before = address
    if PAIRED:
        before = tl.load(table + 5 * tensors + 1 + tl.num_programs(0) + tensor)
    start = (program.to(tl.int64) - first) * steps * BLOCK
    _dispatch(address, before, size, start, steps, rows + program * 9, code, PAIRED, BLOCK)


@triton.jit(do_not_specialize=["tensors"])  # else one more compilation for 1 and for 16
def merge_rows(table, tensors, rows, out, MERGING: tl.constexpr, CHUNK: tl.constexpr):
    """One program per tensor: merges its rows, and the row at its target where `MERGING`.

    Args:
        table: as of `measure_blocks`.
        tensors: how many there are.
        rows: float64 [programs, 9].
        out: float64, written at the offset of each tensor.
        MERGING: whether the present rows count too.
        CHUNK: rows merged together.
    """
    tensor = tl.program_id(0)
    target = out + tl.load(table + 3 * tensors + tensor)
    first = tl.load(table + 4 * tensors + tensor)
    end = tl.load(table + 4 * tensors + tensor + 1)
    if MERGING:
        count, mean, m2 = tl.load(target), tl.load(target + 1), tl.load(target + 2)
        abs_sum, low, high = tl.load(target + 3), tl.load(target + 4), tl.load(target + 5)
        zeros, nonfinite, underflow = tl.load(target + 6), tl.load(target + 7), tl.load(target + 8)
    else:
        count, mean, m2, abs_sum, low, high, zeros, nonfinite, underflow = _neutral()
    nans = (low != low).to(tl.int32)
    for at in range(first, end, CHUNK):
        index = at + tl.arange(0, CHUNK)
        inside = index < end
        row = rows + index * 9
        counts = tl.load(row, mask=inside, other=0.0)
        means = tl.load(row + 1, mask=inside, other=0.0)
        m2s = tl.load(row + 2, mask=inside, other=0.0)
        n, new, new_m2 = _join_many(counts, means, m2s)
        count, mean, m2 = _join(count, mean, m2, n, new, new_m2)
        abs_sum += tl.sum(tl.load(row + 3, mask=inside, other=0.0), axis=0)
        lows = tl.load(row + 4, mask=inside, other=float("inf"))
        highs = tl.load(row + 5, mask=inside, other=float("-inf"))
        nans += tl.sum((lows != lows).to(tl.int32), axis=0)
        low = tl.minimum(low, tl.min(lows, axis=0))
        high = tl.maximum(high, tl.max(highs, axis=0))
        zeros += tl.sum(tl.load(row + 6, mask=inside, other=0.0), axis=0)
        nonfinite += tl.sum(tl.load(row + 7, mask=inside, other=0.0), axis=0)
        underflow += tl.sum(tl.load(row + 8, mask=inside, other=0.0), axis=0)
    low = tl.where(nans > 0, float("nan"), low)
    high = tl.where(nans > 0, float("nan"), high)
    _write(target, count, mean, m2, abs_sum, low, high, zeros, nonfinite, underflow)
