"""The histograms of rows as bytes of an event file."""

import numpy as np
import pytest
import torch

from lightning_hooks.stats.histogram import bucket_edges, histogram
from lightning_hooks.stats.stored_counts import BUCKETS, SIDE, decode_counts, encode_counts
from lightning_hooks.tensorboard.row_histograms import RIGHT_EDGES

ROWS = {
    "normal": histogram(torch.randn(4096, generator=torch.Generator().manual_seed(0))).numpy(),
    "one sign, with zeros": histogram(torch.tensor([0.0] * 70_000 + [1.0, 2.0, 1e-30])).numpy(),
    "outermost buckets": histogram(torch.tensor([3e38, -3e38])).numpy(),
    "every bucket": np.arange(1.0, BUCKETS + 1) ** 2,
    "no finite element": np.zeros(BUCKETS),
    "many elements": np.eye(BUCKETS)[SIDE] * 2.0**52,
}


@pytest.mark.parametrize("chosen", [[*ROWS], ["no finite element"], ["every bucket"], [*ROWS][::-1]], ids=str)
def test_counts_are_those_that_were_written(chosen: list[str]) -> None:
    encoded = encode_counts(np.array([ROWS[name] for name in chosen]))
    assert len(encoded) == len(chosen) and all(encoded)
    for name, row in zip(chosen, encoded, strict=True):
        assert np.array_equal(decode_counts(row), ROWS[name]), name


def test_a_row_takes_a_few_bytes_for_each_bucket() -> None:
    sizes = {name: len(row) for name, row in zip(ROWS, encode_counts(np.array([*ROWS.values()])), strict=True)}
    assert sizes["no finite element"] == 2 and sizes["one sign, with zeros"] < 20
    assert sizes["normal"] < 2 * np.count_nonzero(ROWS["normal"])
    assert encode_counts(np.zeros((0, BUCKETS))) == []


@pytest.mark.parametrize(
    ("encoded", "said"),
    [
        (b"\x80", "the bytes end within a number"),
        (b"\x05", "the bytes end within the head of a run of buckets"),
        (b"\x05\x02\x01", "a run of 2 buckets from bucket 5 has 1 counts of 509 buckets"),
        (b"\xfc\x03\x02\x01\x01", "a run of 2 buckets from bucket 508 has 2 counts of 509 buckets"),
        (b"\xff" * 9 + b"\x01", "a number has more than 9 bytes"),
        (b"\x00\xff\xff\xff\xff\x0f\x01", "a run of 4294967295 buckets from bucket 0 has 1 counts of 509 buckets"),
    ],
)
def test_bytes_of_a_stranger_are_refused(encoded: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=f"^{said}$"):
        decode_counts(encoded)


def test_the_edges_are_those_of_the_statistic() -> None:
    assert np.array_equal(RIGHT_EDGES, bucket_edges()[1:])
