"""Statistics of many rows and of unions, computed together, equal the statistics of each row and union computed alone."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_hooks.stats.kernels.reference import measure
from lightning_hooks.stats.moments import RowUnions, merge_groups
from lightning_hooks.stats.statistics import STATISTICS, RowStatistics, compute


@pytest.fixture
def rows():
    torch.manual_seed(0)
    tensors = [torch.randn(n) * 10.0 ** (n % 7 - 3) + n for n in range(40)]
    tensors[7][0], tensors[11][2], tensors[13][:] = torch.inf, torch.nan, 0.0
    return np.stack([measure(tensor).numpy() for tensor in tensors])


UNIONS = [[0], [0, 1], [5, 6, 7], [11, 3], [13, 13, 0], list(range(14, 40))]


def statistics(stats, rows, merges):
    """Every statistic and the counts [statistics + 1, rows + unions]."""
    shape = len(stats) + 1, len(rows) + len(merges)
    wanted = np.arange(shape[0] * shape[1], dtype=np.int32)
    return RowStatistics(stats, merges, wanted)(rows).values.reshape(shape)


def test_unions_are_those_of_merge_groups(rows):
    wanted = np.stack([merge_groups(torch.from_numpy(rows[union])).numpy() for union in UNIONS])
    np.testing.assert_allclose(RowUnions(UNIONS)(rows), wanted, rtol=1e-12)


def test_statistics_of_rows_and_unions(rows):
    every = np.concatenate([rows, RowUnions(UNIONS)(rows)])
    found = statistics(tuple(STATISTICS), rows, RowUnions(UNIONS))
    for stat, values in zip(STATISTICS, found[:-1], strict=True):
        np.testing.assert_allclose(values, compute(stat, every), rtol=1e-12, err_msg=stat)
    np.testing.assert_array_equal(found[-1], every[:, 0])


def test_what_is_wanted_is_taken_and_a_row_without_elements_is_noticed(rows):
    places = np.array([3, 0, 3, len(rows) + 2], dtype=np.int32)
    merges = RowUnions([[1], [2], [3, 4]])
    found = RowStatistics(("mean",), merges, places)(rows)
    np.testing.assert_array_equal(found.values, statistics(("mean",), rows, merges).ravel()[places])
    assert found.complete is not bool((rows[:, 0] == 0).any())
    every = np.concatenate([rows, merges(rows)])
    np.testing.assert_array_equal(found.measured, every[:, 0] > 0)
    np.testing.assert_allclose(found.norms(), statistics(("norm",), rows, merges)[0], rtol=1e-12)
    rows[:, 0] += rows[:, 0] == 0
    assert RowStatistics(("mean",), RowUnions([]), places[:0])(rows).complete is True


places = st.lists(st.integers(0, 2 * 8 - 1), max_size=12)
runs = st.builds(lambda first, many: list(range(first, first + many)), st.integers(0, 8), st.integers(1, 8))


@settings(deadline=None, max_examples=200, derandomize=True)
@given(wanted=st.one_of(places, st.lists(runs, max_size=5).map(lambda parts: [place for part in parts for place in part])))
def test_places_in_any_order_are_taken_as_they_were_asked_for(wanted):
    rows, merges = np.arange(1.0, 6 * 9 + 1).reshape(6, 9), RowUnions([[1, 2], [0, 5]])
    asked = RowStatistics(("max",), merges, np.array(wanted, dtype=np.int32))
    assert asked.positions.tolist() == wanted
    np.testing.assert_array_equal(asked(rows).values, statistics(("max",), rows, merges).ravel()[wanted])


def test_no_rows_and_no_unions():
    assert RowUnions([])(np.empty((0, 9))).shape == (0, 9)
    assert statistics(("mean",), np.empty((0, 9)), RowUnions([])).shape == (2, 0)


def test_rows_and_places_that_there_are_not_are_refused(rows):
    with pytest.raises(IndexError):
        RowUnions([[0, 400]])(rows)
    with pytest.raises(IndexError):
        RowStatistics(("mean",), RowUnions([[0]]), np.array([2 * (len(rows) + 1)], dtype=np.int32))(rows)
