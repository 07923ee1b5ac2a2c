"""The Triton code that measures spans of tensors. Each span becomes a partial row of moments, which `triton_merge` merges.

A program reads its span once. Deviations are taken from a centre, the mean of the first elements of the span, which keeps their
squares small. The sum of the deviations corrects the mean at the end. Values are scaled near 1 by a power of two, which is
exact and keeps the squares of 1e-38 and of 1e38 within the range of float32. A lane adds up 32 elements in the dtype of the
block and continues in float64, so errors do not grow with the size, and devices with few float64 units are not slowed down.
Lanes meet only at the end of a span: no block waits for all warps. A span is read again in float64, in two passes, if it has
values that are not finite, or values whose magnitude differs too much from that of its first elements.

An element takes about nine instructions, and two more if sums of magnitudes and underflow are requested. A lane takes at most
72 registers, so a multiprocessor of an H200 can keep seven or eight programs.
"""

import triton
import triton.language as tl

BLOCK = 4096  # elements that a program reads together
SMALL_BLOCK = 1024  # elements of a block at the end of a span, and of a span that is read in float64
WARPS = 4  # of each program
LANES = tl.constexpr(32 * WARPS)
FLOAT32, FLOAT16, BFLOAT16, FLOAT64 = range(4)


@triton.jit
def _lane_sums(values, BLOCK: tl.constexpr):
    """The sum of the elements of each lane, in their dtype."""
    eights = tl.sum(tl.reshape(values, (BLOCK // 8, 8), can_reorder=True), axis=1)
    if BLOCK > 8 * LANES:
        eights = tl.sum(tl.reshape(eights, (LANES, BLOCK // 8 // LANES), can_reorder=True), axis=1)
    return eights


@triton.jit
def _lane_counts(marks, BLOCK: tl.constexpr):
    """The number of marks of each lane, in float32, because a comparison can produce 1.0 directly."""
    return _lane_sums(tl.where(marks, 1.0, 0.0), BLOCK)


@triton.jit
def _lane_min(values, BLOCK: tl.constexpr):
    return tl.min(tl.reshape(values, (LANES, BLOCK // LANES), can_reorder=True), axis=1)


@triton.jit
def _lane_max(values, BLOCK: tl.constexpr):
    return tl.max(tl.reshape(values, (LANES, BLOCK // LANES), can_reorder=True), axis=1)


@triton.jit
def _sum(values, BLOCK: tl.constexpr):
    """The sum of a block, in float64: so exact that the rounded mean of equal numbers is this number."""
    eights = tl.sum(tl.reshape(values, (BLOCK // 8, 8), can_reorder=True), axis=1)
    return tl.sum(eights.to(tl.float64), axis=0)


@triton.jit
def _widened(x):
    if x.dtype == tl.float64:
        return x
    # Widen the bits of bfloat16, because a conversion in Triton's interpreter flushes subnormals.
    elif x.dtype == tl.bfloat16:
        return (x.to(tl.int16, bitcast=True).to(tl.int32) << 16).to(tl.float32, bitcast=True)
    else:
        return x.to(tl.float32)


@triton.jit
def _scale_of(largest):
    """The power of two that scales a magnitude near 1. It is the greatest one for a subnormal magnitude, and 1 for zero."""
    if largest.dtype == tl.float64:
        exponent = (largest.to(tl.int64, bitcast=True) >> 52) & 0x7FF
        turned = tl.minimum(tl.maximum(2046 - exponent, 1), 2046)
        scale = (turned << 52).to(tl.float64, bitcast=True)
    else:
        exponent = (largest.to(tl.int32, bitcast=True) >> 23) & 0xFF
        turned = tl.minimum(tl.maximum(254 - exponent, 1), 254)
        scale = (turned << 23).to(tl.float32, bitcast=True)
    return tl.where(largest == 0, 1.0, scale)


@triton.jit
def _least_normal(CODE: tl.constexpr, PAIRED: tl.constexpr):
    """The least magnitude that is not subnormal. The differences of a pair of float16 or bfloat16 tensors are float32."""
    if CODE == 3:
        return 2.2250738585072014e-308
    elif CODE == 1 and not PAIRED:
        return 6.103515625e-05
    else:
        return 1.1754943508222875e-38


@triton.jit
def _pointer(address, CODE: tl.constexpr):
    # The address is an integer, so the compiler cannot know that the host has aligned it to 16 bytes. `multiple_of` says so.
    if CODE == 0:
        return tl.multiple_of(address.to(tl.pointer_type(tl.float32)), 16)
    elif CODE == 1:
        return tl.multiple_of(address.to(tl.pointer_type(tl.float16)), 16)
    elif CODE == 2:
        return tl.multiple_of(address.to(tl.pointer_type(tl.bfloat16)), 16)
    else:
        return tl.multiple_of(address.to(tl.pointer_type(tl.float64)), 16)


@triton.jit
def _whole(pointer, before, at, PAIRED: tl.constexpr, BLOCK: tl.constexpr):
    """The values of a whole block, loaded without a mask so that loads are wide."""
    lane = tl.arange(0, BLOCK)
    x = _widened(tl.load(pointer + at + lane))
    if PAIRED:
        x -= _widened(tl.load(before + at + lane))
    return x


@triton.jit
def _part(pointer, before, at, size, PAIRED: tl.constexpr, BLOCK: tl.constexpr):
    """The values of a block that may extend past `size`, with zeros there."""
    lane = tl.arange(0, BLOCK)
    x = _widened(tl.load(pointer + at + lane, mask=at + lane < size, other=0.0))
    if PAIRED:
        x -= _widened(tl.load(before + at + lane, mask=at + lane < size, other=0.0))
    return x


@triton.jit
def store_row(target, count, mean, m2, abs_sum, low, high, nans, zeros, nonfinite, underflow):
    """Writes a row in the order of the schema. Its extremes are NaN if `nans` is not 0."""
    tl.store(target, count)
    tl.store(target + 1, mean)
    tl.store(target + 2, m2)
    tl.store(target + 3, abs_sum)
    tl.store(target + 4, tl.where(nans > 0, float("nan"), low.to(tl.float64)))
    tl.store(target + 5, tl.where(nans > 0, float("nan"), high.to(tl.float64)))
    tl.store(target + 6, zeros.to(tl.float64))
    tl.store(target + 7, nonfinite.to(tl.float64))
    tl.store(target + 8, underflow.to(tl.float64))


@triton.jit
def _span(
    pointer,
    before,
    size,
    start,
    steps,
    target,
    LEAST: tl.constexpr,
    MAGNITUDES: tl.constexpr,
    PAIRED: tl.constexpr,
    BLOCK: tl.constexpr,
    SMALL: tl.constexpr,
):
    """Writes the moments of up to `steps` consecutive blocks to a partial row."""
    end = tl.minimum(size, start + steps * BLOCK)
    head = _part(pointer, before, start, end, PAIRED, SMALL)
    scale = _scale_of(tl.max(tl.abs(head), axis=0))
    centre = (_sum(head * scale, SMALL) / tl.minimum(end - start, SMALL).to(tl.float64)).to(head.dtype)

    first = tl.zeros((LANES,), tl.float64)
    second = tl.zeros((LANES,), tl.float64)
    sizes = tl.zeros((LANES,), tl.float64)
    lows = tl.full((LANES,), float("inf"), head.dtype)
    highs = tl.full((LANES,), float("-inf"), head.dtype)
    # These counts are exact in float32, because a lane has at most 512 elements of a span.
    zeros = tl.zeros((LANES,), tl.float32)
    small = tl.zeros((LANES,), tl.float32)
    whole_end = start + (end - start) // BLOCK * BLOCK
    for at in range(start, whole_end, BLOCK):
        x = _whole(pointer, before, at, PAIRED, BLOCK)
        apart = x * scale - centre
        first += _lane_sums(apart, BLOCK).to(tl.float64)
        second += _lane_sums(apart * apart, BLOCK).to(tl.float64)
        lows = tl.minimum(lows, _lane_min(x, BLOCK))
        highs = tl.maximum(highs, _lane_max(x, BLOCK))
        zeros += _lane_counts(x == 0, BLOCK)
        if MAGNITUDES:
            sizes += _lane_sums(tl.abs(x), BLOCK).to(tl.float64)
            small += _lane_counts(tl.abs(x) < LEAST, BLOCK)
    for at in range(whole_end, end, SMALL):
        x = _part(pointer, before, at, end, PAIRED, SMALL)
        inside = at + tl.arange(0, SMALL) < end
        apart = tl.where(inside, x * scale - centre, 0.0)
        first += _lane_sums(apart, SMALL).to(tl.float64)
        second += _lane_sums(apart * apart, SMALL).to(tl.float64)
        lows = tl.minimum(lows, _lane_min(tl.where(inside, x, float("inf")), SMALL))
        highs = tl.maximum(highs, _lane_max(tl.where(inside, x, float("-inf")), SMALL))
        zeros += _lane_counts(inside & (x == 0), SMALL)
        if MAGNITUDES:
            sizes += _lane_sums(tl.abs(x), SMALL).to(tl.float64)
            small += _lane_counts(inside & (tl.abs(x) < LEAST), SMALL)

    low, high = tl.min(lows, axis=0), tl.max(highs, axis=0)
    zero = tl.sum(zeros, axis=0).to(tl.int64)
    # The greatest magnitude after scaling; negative infinity if all values are NaN.
    near = tl.maximum(-low, high) * scale
    fits = ((near > 1e-12) & (near < 1e12)) | ((low == 0) & (high == 0))
    square = tl.sum(second, axis=0)
    if MAGNITUDES:
        abs_sum = tl.sum(sizes, axis=0)
        underflow = tl.sum(small, axis=0).to(tl.int64) - zero
        fits = fits & (abs_sum < float("inf"))
    else:
        abs_sum = tl.full((), float("nan"), tl.float64)
        underflow = abs_sum
        # The squared deviations have a NaN if a value is NaN.
        fits = fits & (square == square)
    if fits:
        count = (end - start).to(tl.float64)
        rest = tl.sum(first, axis=0) / count
        m2 = square - count * rest * rest
        back = 1.0 / scale.to(tl.float64)
        mean = (centre.to(tl.float64) + rest) * back
        m2 = tl.where(m2 < 0.0, 0.0, m2) * back * back
        none = tl.full((), 0, tl.int64)
        store_row(target, count, mean, m2, abs_sum, low, high, none, zero, none, underflow)
    else:
        _span_in_float64(pointer, before, end, start, target, zero, underflow, MAGNITUDES, PAIRED, SMALL)


@triton.jit
def _span_in_float64(
    pointer,
    before,
    end,
    start,
    target,
    zeros,
    underflow,
    MAGNITUDES: tl.constexpr,
    PAIRED: tl.constexpr,
    SMALL: tl.constexpr,
):
    """As `_span`, for values that are not finite or differ too much: in float64, in two passes, whose sums cannot overflow."""
    count = (end - start).to(tl.float64)
    total = tl.full((), 0.0, tl.float64)
    abs_sum, nonfinite, nans = total, total, total
    low, high = total + float("inf"), total - float("inf")
    for at in range(start, end, SMALL):
        x = _part(pointer, before, at, end, PAIRED, SMALL).to(tl.float64)
        inside = at + tl.arange(0, SMALL) < end
        total += tl.sum(x, axis=0)
        if MAGNITUDES:
            abs_sum += tl.sum(tl.abs(x), axis=0)
        low = tl.minimum(low, tl.min(tl.where(inside, x, float("inf")), axis=0))
        high = tl.maximum(high, tl.max(tl.where(inside, x, float("-inf")), axis=0))
        bits = x.to(tl.int64, bitcast=True) & 0x7FFFFFFFFFFFFFFF
        nonfinite += tl.sum((bits >= 0x7FF0000000000000).to(tl.float64), axis=0)
        nans += tl.sum((bits > 0x7FF0000000000000).to(tl.float64), axis=0)
    if not MAGNITUDES:
        abs_sum = tl.full((), float("nan"), tl.float64)
    mean = total / count
    m2 = tl.full((), 0.0, tl.float64)
    for at in range(start, end, SMALL):
        apart = _part(pointer, before, at, end, PAIRED, SMALL).to(tl.float64) - mean
        m2 += tl.sum(tl.where(at + tl.arange(0, SMALL) < end, apart * apart, 0.0), axis=0)
    store_row(target, count, mean, m2, abs_sum, low, high, nans, zeros, nonfinite, underflow)


@triton.jit(do_not_specialize=["address", "size", "steps", "rows"])
def measure_one(
    address, size, steps, rows, CODE: tl.constexpr, MAGNITUDES: tl.constexpr, BLOCK: tl.constexpr, SMALL: tl.constexpr
):
    """Writes the partial rows of one tensor. One program measures one span.

    Args:
        address: the address of the first element, a multiple of 16.
        size: the number of elements.
        steps: the number of blocks in a span.
        rows: the address of float64 [programs, 9], written.
        CODE: the code of the dtype.
        MAGNITUDES: whether the sum of magnitudes and underflow are measured; if not, they are NaN.
        BLOCK: the number of elements in a block.
        SMALL: the number of elements in a block at the end of a span or in float64.
    """
    program = tl.program_id(0).to(tl.int64)
    target = rows.to(tl.pointer_type(tl.float64)) + program * 9
    pointer = _pointer(address, CODE)
    start = program * steps * BLOCK
    _span(pointer, pointer, size, start, steps, target, _least_normal(CODE, False), MAGNITUDES, False, BLOCK, SMALL)


@triton.jit
def _listed(program, table, tensors, steps, COLUMNS: tl.constexpr, CODE: tl.constexpr, BLOCK: tl.constexpr):
    """What a program reads of a list: the number of its tensor, two pointers, the size, and the start of its span.

    Args:
        program: the number of the program, int64.
        table: the address of int64 numbers: `COLUMNS` columns, each [tensors], then the tensor of each program. The first four
            columns are the addresses, the sizes, the first programs, and the addresses of the other tensors of the pairs.
        tensors: the number of tensors.
        steps: the number of blocks in a span.
        COLUMNS: the number of columns.
        CODE: the code of the dtype.
        BLOCK: the number of elements in a block.
    """
    entries = table.to(tl.pointer_type(tl.int64))
    tensor = tl.load(entries + COLUMNS * tensors + program)
    pointer = _pointer(tl.load(entries + tensor), CODE)
    size = tl.load(entries + tensors + tensor)
    start = (program - tl.load(entries + 2 * tensors + tensor)) * steps * BLOCK
    other = _pointer(tl.load(entries + 3 * tensors + tensor), CODE)
    return tensor, pointer, other, size, start


@triton.jit(do_not_specialize=["table", "tensors", "steps", "rows"])
def measure_list(
    table,
    tensors,
    steps,
    rows,
    CODE: tl.constexpr,
    MAGNITUDES: tl.constexpr,
    PAIRED: tl.constexpr,
    BLOCK: tl.constexpr,
    SMALL: tl.constexpr,
):
    """Writes the partial rows of tensors of one dtype, or with `PAIRED` of differences of pairs of tensors with equal layouts.

    Args:
        table: the address of int64 numbers: the addresses, the sizes, the first programs and the addresses of the subtracted
            tensors, each [tensors]; then the tensor of each program.
        tensors: the number of tensors.
        steps: the number of blocks in a span.
        rows: the address of float64 [programs, 9], written.
        CODE: the code of the dtype.
        MAGNITUDES: as for `measure_one`.
        PAIRED: whether differences are measured.
        BLOCK: the number of elements in a block.
        SMALL: the number of elements in a block at the end of a span or in float64.
    """
    program = tl.program_id(0).to(tl.int64)
    _, pointer, before, size, start = _listed(program, table, tensors, steps, 4, CODE, BLOCK)
    target = rows.to(tl.pointer_type(tl.float64)) + program * 9
    _span(pointer, before, size, start, steps, target, _least_normal(CODE, PAIRED), MAGNITUDES, PAIRED, BLOCK, SMALL)


@triton.jit
def _choose(program, e0, e1, e2, e3, e4, e5, e6, v0, v1, v2, v3, v4, v5, v6, v7):
    """The value of the tensor that a program measures."""
    late = tl.where(program < e4, v4, tl.where(program < e5, v5, tl.where(program < e6, v6, v7)))
    return tl.where(program < e0, v0, tl.where(program < e1, v1, tl.where(program < e2, v2, tl.where(program < e3, v3, late))))


@triton.jit(do_not_specialize=[*(f"{letter}{i}" for letter in "ane" for i in range(8 - (letter == "e"))), "rows"])
def measure_eight(
    a0, a1, a2, a3, a4, a5, a6, a7,
    n0, n1, n2, n3, n4, n5, n6, n7,
    e0, e1, e2, e3, e4, e5, e6,
    rows,
    CODE: tl.constexpr,
    MAGNITUDES: tl.constexpr,
    PROGRAMS: tl.constexpr,
    MOST_BLOCKS: tl.constexpr,
    BLOCK: tl.constexpr,
    SMALL: tl.constexpr,
):  # fmt: skip
    """Writes the partial rows of up to eight tensors of one dtype, with the same bits as `measure_one` for each of them.

    The partial rows of one tensor follow those of the previous one. The arguments are integers, so no table is copied to the
    device.

    Args:
        a0, a1, a2, a3, a4, a5, a6, a7: the addresses of the first elements, multiples of 16.
        n0, n1, n2, n3, n4, n5, n6, n7: the numbers of elements.
        e0, e1, e2, e3, e4, e5, e6: the first program after those of each tensor but the last. If there are fewer tensors, the
            others end where the last one ends.
        rows: the address of float64 [programs, 9], written.
        CODE: the code of the dtype.
        MAGNITUDES: as for `measure_one`.
        PROGRAMS: the most programs of a tensor whose spans do not have MOST_BLOCKS blocks.
        MOST_BLOCKS: the most blocks of a span.
        BLOCK: the number of elements in a block.
        SMALL: the number of elements in a block at the end of a span or in float64.
    """
    program = tl.program_id(0).to(tl.int64)
    address = _choose(program, e0, e1, e2, e3, e4, e5, e6, a0, a1, a2, a3, a4, a5, a6, a7)
    size = _choose(program, e0, e1, e2, e3, e4, e5, e6, n0, n1, n2, n3, n4, n5, n6, n7)
    first = _choose(program, e0, e1, e2, e3, e4, e5, e6, 0 * e0, e0, e1, e2, e3, e4, e5, e6)
    blocks = (size + BLOCK - 1) // BLOCK
    few = (blocks + (PROGRAMS + 1) // 2 - 1) // ((PROGRAMS + 1) // 2)
    many = tl.minimum((blocks + PROGRAMS - 1) // PROGRAMS, MOST_BLOCKS)
    steps = tl.where(few > MOST_BLOCKS // 2, many, tl.maximum(few, 1))
    start = (program - first) * steps * BLOCK
    target = rows.to(tl.pointer_type(tl.float64)) + program * 9
    pointer = _pointer(address, CODE)
    _span(pointer, pointer, size, start, steps, target, _least_normal(CODE, False), MAGNITUDES, False, BLOCK, SMALL)
