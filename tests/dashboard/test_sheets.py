"""Histograms in the form in which the page draws them."""

import base64

import numpy as np
import pytest

from lightning_hooks.dashboard.sheets import bins_of, packed_histograms
from lightning_hooks.stats.histogram import BUCKETS, bucket_edges


def unpacked(packed):
    codes = np.frombuffer(base64.b64decode(packed["counts"]), dtype="<u2").reshape(len(packed["steps"]), packed["bins"])
    return np.round(2 ** (codes / 1000) - 1)


def test_the_buckets_of_the_statistic_are_the_bins():
    assert bins_of(bucket_edges()[1:]).tolist() == [*range(-254, 255)]
    assert BUCKETS == 509


@pytest.mark.parametrize(
    ("edges", "bins"),
    [
        ([0.25, 0.5, 1.0], [124, 125, 126]),  # the first bucket is as wide as its bin
        ([-1.0, -0.5], [-127, -126]),
        ([-0.1, 0.1], [-124, 0]),  # a bucket around zero
        ([1.0, 1.1, 1.2], [126, 127, 127]),  # of another writer: narrower than a bin
        ([1e300, np.inf], [254, 254]),
        ([], []),
    ],
)
def test_any_buckets_have_bins(edges, bins):
    assert bins_of(np.array(edges, dtype=np.float64)).tolist() == bins


def test_steps_of_a_row_share_their_bins():
    edges = np.array([0.25, 0.5, 1.0])
    points = [(3, edges, np.array([0.0, 7, 1000])), (9, np.array([-1.0, -0.5]), np.array([0.0, 2]))]
    packed = packed_histograms("grad_histogram/w", points)
    assert {key: packed[key] for key in ("tag", "steps", "totals", "low", "bins")} == {
        "tag": "grad_histogram/w",
        "steps": [3, 9],
        "totals": [1007, 2],
        "low": -126,
        "bins": 253,
    }
    counts = unpacked(packed)
    assert counts[0, 125 + 126] == 7 and counts[0, 126 + 126] == 1000 and counts[1, 0] == 2
    assert counts.sum() == 1009


def test_buckets_of_one_bin_are_added_and_large_counts_are_nearly_kept():
    packed = packed_histograms("t", [(0, np.array([1.0, 1.1, 1.2]), np.array([0.0, 3e9, 1e9]))])
    assert packed["bins"] == 1 and packed["totals"] == [4e9]
    np.testing.assert_allclose(unpacked(packed), 4e9, rtol=4e-4)


def test_histograms_without_elements():
    packed = packed_histograms("t", [(0, np.empty(0), np.empty(0)), (1, np.array([1.0]), np.array([np.nan]))])
    assert (packed["steps"], packed["totals"], packed["bins"]) == ([0, 1], [0, 0], 1)
    assert packed_histograms("t", [])["steps"] == []
