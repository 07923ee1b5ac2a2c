"""Serializes histograms for TensorBoard: the occupied buckets, and one empty bucket for each gap between them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from tensorboard.compat.proto.histogram_pb2 import HistogramProto
from tensorboard.compat.proto.summary_pb2 import Summary

from lightning_hooks import backends

Array = NDArray[np.float64]


def histogram_bytes(tags: Sequence[str], counts: Array, limits: Array) -> bytes:
    """A serialized summary of histograms, each as `histogram_proto` returns it.

    The compiled part builds the summary if it is available.

    Args:
        tags: one tag for each histogram.
        counts: [tags, buckets].
        limits: right edges of the buckets, ascending [buckets].
    """
    kernel = backends.events().module
    if kernel is not None:
        drawn: bytes = kernel.draw(tags, np.ascontiguousarray(counts), limits)
        return drawn
    summary = Summary()
    for tag, row in zip(tags, counts, strict=True):
        summary.value.add(tag=tag, histo=histogram_proto(row, limits))
    serialized: bytes = summary.SerializeToString()
    return serialized


def histogram_proto(counts: Array, limits: Array) -> HistogramProto:
    """The histogram message of counts over fixed edges: the occupied buckets, and one empty bucket for each gap between them.

    Args:
        counts: [buckets].
        limits: right edges of the buckets, ascending [buckets].

    Example:
        >>> proto = histogram_proto(np.array([0.0, 2.0, 0.0]), np.array([0.0, 1.0, 2.0]))
        >>> proto.num, list(proto.bucket_limit), list(proto.bucket)
        (2.0, [0.0, 1.0], [0.0, 2.0])
    """
    occupied = np.flatnonzero(counts)
    if len(occupied) == 0:
        return HistogramProto(min=0.0, max=0.0, num=0.0, sum=0.0, sum_squares=0.0, bucket_limit=[0.0], bucket=[0.0])
    # Keep the bucket before each occupied bucket: its right edge is the left edge of the occupied bucket. One such bucket
    # stands for a whole gap; with values of both signs some two hundred buckets around zero are empty.
    kept = np.unique(np.concatenate([np.maximum(occupied - 1, 0), occupied]))
    left = limits[np.maximum(occupied - 1, 0)]
    middle = (left + limits[occupied]) / 2
    with np.errstate(over="ignore"):
        total = float((counts[occupied] * middle).sum())
        squares = float((counts[occupied] * np.square(middle)).sum())
    return HistogramProto(
        min=float(left[0]),
        max=float(limits[occupied[-1]]),
        num=float(counts.sum()),
        sum=total,
        sum_squares=squares,
        bucket_limit=limits[kept].tolist(),
        bucket=counts[kept].tolist(),
    )
