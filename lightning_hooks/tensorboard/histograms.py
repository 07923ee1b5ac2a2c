"""Many histograms serialized at once: by the compiled part where that is there.

With NumPy what is the same for each is done for all of them in one vector operation.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.tensorboard._compiled import compiled
from lightning_hooks.tensorboard.template import varint

Array = NDArray[np.float64]
# Field numbers and wire types: of a value its tag and histogram; of a histogram its five numbers, edges and counts.
_VALUE, _TAG, _HISTOGRAM, _EDGES, _COUNTS = b"\x0a", b"\x0a", b"\x2a", b"\x32", b"\x3a"
_NUMBERS = (b"\x09", b"\x11", b"\x19", b"\x21", b"\x29")


def serialized(tags: Sequence[str], counts: Array, limits: Array) -> bytes:
    """A summary of histograms, each as `events.histogram_proto` has it.

    Args:
        tags: of all.
        counts: [tags, buckets].
        limits: right edges, ascending [buckets].
    """
    kernel = compiled()
    if kernel is not None:
        drawn: bytes = kernel.draw(tags, np.ascontiguousarray(counts), limits)
        return drawn
    return with_numpy(tags, counts, limits)


def with_numpy(tags: Sequence[str], counts: Array, limits: Array) -> bytes:
    """`serialized`, where nothing is compiled."""
    occupied = counts != 0
    kept = occupied.copy()
    kept[:, :-1] |= occupied[:, 1:]
    left = np.concatenate([limits[:1], limits[:-1]])
    middle = (left + limits) / 2
    empty = ~occupied.any(1)  # nothing finite was measured: one bucket at zero
    limits_of = np.broadcast_to(limits, counts.shape)
    if empty.any():
        kept[empty, 0] = True
        limits_of = np.where(empty[:, None], 0.0, limits_of)
    first, last = occupied.argmax(1), occupied.shape[1] - 1 - occupied[:, ::-1].argmax(1)
    with np.errstate(over="ignore", invalid="ignore"):
        total = np.where(occupied, counts * middle, 0.0).sum(1)
        squares = np.where(occupied, counts * np.square(middle), 0.0).sum(1)
    low, high = np.where(empty, 0.0, left[first]), np.where(empty, 0.0, limits[last])
    numbers = np.stack([low, high, counts.sum(1), total, squares], axis=1).astype("<f8").tobytes()
    edges = limits_of[kept].astype("<f8").tobytes()
    heights = counts[kept].astype("<f8").tobytes()
    parts: list[bytes] = []
    end = 0
    for row, (tag, many) in enumerate(zip(tags, kept.sum(1).tolist(), strict=True)):
        start, end = end, end + 8 * many
        size = varint(8 * many)
        named = [part for i, key in enumerate(_NUMBERS) for part in (key, numbers[40 * row + 8 * i : 40 * row + 8 * i + 8])]
        drawn = b"".join((*named, _EDGES, size, edges[start:end], _COUNTS, size, heights[start:end]))
        name = tag.encode()
        value = b"".join((_TAG, varint(len(name)), name, _HISTOGRAM, varint(len(drawn)), drawn))
        parts += (_VALUE, varint(len(value)), value)
    return b"".join(parts)
