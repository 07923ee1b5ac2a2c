"""Statistics of many rows and of unions, computed together, equal the statistics of each row and union computed alone."""

import numpy as np
import pytest
import torch

from lightning_hooks.stats.kernels.reference import measure
from lightning_hooks.stats.moments import RowUnions, merge_groups
from lightning_hooks.stats.row_statistics import RowStatistics, StatisticRequests
from lightning_hooks.stats.statistics import STATISTICS, compute


@pytest.fixture
def rows():
    torch.manual_seed(0)
    tensors = [torch.randn(n) * 10.0 ** (n % 7 - 3) + n for n in range(40)]
    tensors[7][0], tensors[11][2], tensors[13][:] = torch.inf, torch.nan, 0.0
    return np.stack([measure(tensor).numpy() for tensor in tensors])


UNIONS = [[0], [0, 1], [5, 6, 7], [11, 3], [13, 13, 0], list(range(14, 40))]


def test_unions_are_those_of_merge_groups(rows):
    expected = np.stack([merge_groups(torch.from_numpy(rows[union])).numpy() for union in UNIONS])
    np.testing.assert_allclose(RowUnions(UNIONS)(rows), expected, rtol=1e-12)


def test_statistics_of_rows_and_unions_are_at_their_spans_in_the_order_of_the_requests(rows):
    every = np.concatenate([rows, RowUnions(UNIONS[1:])(rows)])
    requests = StatisticRequests(len(rows))
    assert [requests.union(union) for union in (*UNIONS, UNIONS[2])] == [0, 40, 41, 42, 43, 44, 41]
    asked = {stat: np.arange(len(every))[:: i % 3 + 1] for i, stat in enumerate((*STATISTICS, "count"))}
    spans = {stat: requests.add(stat, at) for stat, at in asked.items()}
    found = RowStatistics(requests)(rows)
    for stat, span in spans.items():
        expected = every[:, 0] if stat == "count" else compute(stat, every)
        np.testing.assert_allclose(found.values[span], expected[asked[stat]], rtol=1e-12, err_msg=stat)
        np.testing.assert_array_equal(found.are_measured[span], every[asked[stat], 0] > 0)
    assert requests.since(0) == slice(0, len(found.values)) and found.complete is False
    np.testing.assert_array_equal(found.measured, every[:, 0] > 0)
    np.testing.assert_allclose(found.norms(), compute("norm", every), rtol=1e-12)


def test_a_step_that_measures_every_row_is_complete(rows):
    rows[:, 0] += rows[:, 0] == 0
    requests = StatisticRequests(len(rows))
    requests.add("mean", np.array([3, 0, 3]))
    found = RowStatistics(requests)(rows)
    assert found.complete is True and found.are_measured.tolist() == [True] * 3
    assert found.values.tolist() == compute("mean", rows[[3, 0, 3]]).tolist()


def test_room_is_made_for_a_statistic_that_the_caller_computes(rows):
    requests = StatisticRequests(len(rows))
    room, means = requests.add("p99", np.array([2, 5])), requests.add("mean", np.array([4]))
    found = RowStatistics(requests)(rows)
    found.values[room] = 7.0
    assert found.values.tolist() == [7.0, 7.0, compute("mean", rows[[4]])[0]] and means == slice(2, 3)


def test_no_rows_and_no_unions():
    assert RowUnions([])(np.empty((0, 9))).shape == (0, 9)
    found = RowStatistics(StatisticRequests(0))(np.empty((0, 9)))
    assert found.values.shape == found.are_measured.shape == (0,) and found.complete is True


def test_rows_that_do_not_exist_raise(rows):
    with pytest.raises(IndexError):
        RowUnions([[0, 400]])(rows)
    requests = StatisticRequests(len(rows))
    requests.add("mean", np.array([2 * len(rows)]))
    with pytest.raises(IndexError):
        RowStatistics(requests)(rows)
