"""The histograms of rows in the form in which an event file stores them: a few bytes for each bucket that holds an element.

The bytes of a row are whole numbers of at least 0, each in groups of seven bits with the lowest first (a varint). For every
run of occupied buckets they are the number of empty buckets before the run, the length of the run, and its counts. Counts are
exact, so the histograms of rows add up to that of a block. This module imports no torch, so that runs can be read where torch
is not installed.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

SIDE: Final = 254
"""The buckets of each sign, one for each power of two of float32; see `stats/histogram.py`."""
BUCKETS: Final = 2 * SIDE + 1
_LONGEST: Final = 9  # bytes of a number: 63 bits, as many as an int64 holds
_EMPTY: Final = b"\0\0"
"""The bytes of a row that was measured and has no finite element: one run of length 0. A row that was not measured has none."""


def encode_counts(counts: NDArray[np.float64]) -> list[bytes]:
    r"""The bytes of each row.

    Args:
        counts: float64 [rows, buckets], whole numbers.

    Example:
        >>> encode_counts(np.array([[0.0, 0.0, 5.0, 300.0, 0.0, 1.0]]))
        [b'\x02\x02\x05\xac\x02\x01\x01\x01']
    """
    rows, buckets = np.nonzero(counts)
    is_start = np.append(True, (np.diff(rows) != 0) | (np.diff(buckets) != 1))[: len(rows)]
    starts = np.flatnonzero(is_start)
    lengths = np.diff(np.append(starts, len(rows)))
    # Empty buckets before a run: from the first bucket of the row, or from the bucket behind the run before.
    behind = np.append(0, (buckets[starts] + lengths)[:-1])[: len(starts)]
    is_first = np.append(True, np.diff(rows[starts]) != 0)[: len(starts)]
    gaps = buckets[starts] - np.where(is_first, 0, behind)
    at = np.repeat(starts, 2)
    numbers = np.insert(
        counts[rows, buckets].astype(np.uint64), at, np.stack([gaps, lengths], axis=1).ravel().astype(np.uint64)
    )
    encoded, ends = _varints(numbers)
    numbers_of = np.bincount(np.insert(rows, at, rows[at]), minlength=len(counts))
    ends_of = np.append(0, ends)[np.append(0, np.cumsum(numbers_of))].tolist()
    return [encoded[first:last] or _EMPTY for first, last in zip(ends_of, ends_of[1:], strict=False)]


def decode_counts(encoded: bytes) -> NDArray[np.float64]:
    r"""The counts of a row, float64 [BUCKETS].

    Raises:
        ValueError: the bytes are not a histogram as `encode_counts` writes it.

    Example:
        >>> decode_counts(b"\x02\x02\x05\xac\x02\x01\x01\x01")[:6].tolist()
        [0.0, 0.0, 5.0, 300.0, 0.0, 1.0]
    """
    numbers = _numbers(encoded)
    counts = np.zeros(BUCKETS)
    at = bucket = 0
    while at + 1 < len(numbers):
        bucket += numbers[at]
        behind = bucket + numbers[at + 1]
        run = numbers[at + 2 : at + 2 + numbers[at + 1]]
        if behind > BUCKETS or len(run) != behind - bucket:
            raise ValueError(
                f"a run of {behind - bucket} buckets from bucket {bucket} has {len(run)} counts of {BUCKETS} buckets"
            )
        counts[bucket:behind] = run
        at, bucket = at + 2 + len(run), behind
    if at != len(numbers):
        raise ValueError("the bytes end within the head of a run of buckets")
    return counts


def _varints(numbers: NDArray[np.uint64]) -> tuple[bytes, NDArray[np.intp]]:
    """The bytes of numbers one after the other, and the end of each."""
    sizes = np.ones(len(numbers), dtype=np.intp)
    for byte in range(1, _LONGEST):
        sizes += numbers >= np.uint64(1 << 7 * byte)
    ends = np.cumsum(sizes, dtype=np.intp)
    out = np.zeros(int(sizes.sum()), dtype=np.uint8)
    for byte in range(int(sizes.max(initial=0))):
        has = sizes > byte
        groups = (numbers[has] >> np.uint64(7 * byte)) & np.uint64(127)
        out[(ends - sizes)[has] + byte] = groups | np.where(sizes[has] > byte + 1, 128, 0).astype(np.uint64)
    return out.tobytes(), ends


def _numbers(encoded: bytes) -> list[int]:
    numbers, number, shift = [], 0, 0
    for byte in encoded:
        number |= (byte & 127) << shift
        shift += 7
        if shift > 7 * _LONGEST:
            raise ValueError(f"a number has more than {_LONGEST} bytes")
        if byte < 128:
            numbers.append(number)
            number = shift = 0
    if shift:
        raise ValueError("the bytes end within a number")
    return numbers
