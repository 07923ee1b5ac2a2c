"""Statistics follow their definitions in docs/statistics.md, and every form of the moments gives the same bits."""

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from lightning_hooks.stats import schema
from lightning_hooks.stats.kernels import measure_many
from lightning_hooks.stats.pairs import BEFORE, COLUMNS, DOT, NOISE, NOW, PAIR_STATS, PARTS, SIGNAL, SMALL, noise_estimates
from lightning_hooks.stats.pairs import compute as compute_pairs
from lightning_hooks.stats.row_states import SeparateColumns
from lightning_hooks.stats.row_statistics import RowStatistics, StatisticRequests
from lightning_hooks.stats.statistics import STATISTICS, compute, mean_of_function, ratio_of_rows
from tests.stats.definitions import DEFINITIONS, pair_statistics, ratio
from tests.stats.tensors import doubles

sizes = st.floats(1e-50, 1e50)
numbers = st.just(0.0) | sizes | sizes.map(lambda x: -x) | st.floats(0.0, 1e-310).map(lambda x: x * 0.5)
elements = st.lists(numbers, min_size=1, max_size=6).map(np.array)
anything = st.lists(st.floats(), max_size=4).map(np.array)
tables = st.lists(st.lists(anything, min_size=3, max_size=3), min_size=1, max_size=3)


def exact_moments(x):
    """The moments of elements, each rounded once; not those of a kernel."""
    mean = math.fsum(x) / len(x)
    tiny = np.finfo(np.float64).tiny
    return np.array(
        [
            len(x),
            mean,
            math.fsum((each - mean) ** 2 for each in x),
            math.fsum(map(abs, x)),
            min(x),
            max(x),
            sum(each == 0 for each in x),
            0,
            sum(0 < abs(each) < tiny for each in x),
        ]
    )


def separate(moments):
    """The same moments as separate columns [rows, steps], laid out as those of an event file."""
    columns = [np.asfortranarray(np.moveaxis(moments, 0, -2)[..., column]) for column in range(moments.shape[-1])]
    return SeparateColumns(columns.__getitem__)


def test_every_statistic_has_a_definition():
    assert {*DEFINITIONS} == {*STATISTICS}


@given(elements)
def test_a_statistic_is_its_definition(x):
    moments = exact_moments(x)[None]
    for stat, definition in DEFINITIONS.items():
        slack = 1e-12 * np.abs(x).max() if stat in ("mean", "std") else 0.0  # elements may cancel
        assert compute(stat, moments)[0] == pytest.approx(definition(x), rel=1e-12, abs=slack), stat
    assert compute("count", moments).tolist() == [len(x)]


@given(elements, elements, st.booleans())
def test_a_ratio_is_its_definition(update, param, still):
    rows = np.stack([exact_moments(x * (not still)) for x in (param, update)])
    found = ratio_of_rows(rows, np.array([1]), np.array([0]))[0]
    assert found == pytest.approx(ratio(update * (not still), param * (not still)), rel=1e-12)


@given(arrays(float, (3, 4), elements=st.floats(-9, 9)), arrays(float, 4, elements=st.floats(-9, 9)))
def test_statistics_of_pairs_are_their_definitions(parts, before):
    now = parts.sum(0)
    assume(min(np.linalg.norm(now), np.linalg.norm(before), np.linalg.norm(parts)) > 1e-3)
    square = np.array([now @ now])
    sums = np.zeros((1, len(COLUMNS)))
    sums[0, [DOT, BEFORE, NOW, SMALL, PARTS]] = now @ before, before @ before, now @ now, np.square(parts).sum(), len(parts)
    sums[0, [SIGNAL, NOISE]] = noise_estimates(sums, square)[0]
    assume(abs(sums[0, SIGNAL]) > 1e-6)
    for stat, expected in pair_statistics(parts, before).items():
        found = compute_pairs(stat, sums, lambda: square)[0]
        assert found == pytest.approx(expected, rel=1e-6, abs=1e-9, nan_ok=True), stat
        columns = SeparateColumns(sums.T.__getitem__)
        np.testing.assert_array_equal(compute_pairs(stat, columns, lambda: square)[0], found)
    assert {*pair_statistics(parts, before)} == {*PAIR_STATS}


@given(tables)
def test_every_form_of_the_moments_gives_the_same_bits(steps):
    moments = np.stack([measure_many(doubles(rows)).numpy() for rows in steps])
    alone = [[compute(stat, moments[i, j : j + 1])[0] for i in range(len(moments)) for j in range(3)] for stat in STATISTICS]
    expected = np.reshape(alone, (len(STATISTICS), len(moments), 3))
    for stat, values in zip(STATISTICS, expected, strict=True):
        np.testing.assert_array_equal(compute(stat, moments), values, err_msg=stat)
        np.testing.assert_array_equal(compute(stat, separate(moments)).T, values, err_msg=stat)
    requests = StatisticRequests(rows=3)
    for stat in (*STATISTICS, "count"):
        requests.add(stat, np.arange(3))
    for i, step in enumerate(moments):
        together = RowStatistics(requests)(step)
        np.testing.assert_array_equal(together.values.reshape(-1, 3), [*expected[:, i], step[:, schema.COUNT]])
        assert together.complete == (step[:, schema.COUNT] > 0).all() == (not np.isnan(expected[-1, i]).any())


def test_a_row_that_a_file_does_not_have_at_a_step_has_no_value():
    moments = exact_moments(np.array([1.0, -2.0]))[None, None].repeat(2, 0)
    moments[1, 0, schema.COUNT] = np.nan
    for stat in STATISTICS:
        assert np.isnan(compute(stat, separate(moments))).tolist() == [[False, True]], stat


def test_the_mean_of_a_function_is_weighted_and_missing_without_elements():
    sums = np.array([[6.0, 4.0], [0.0, 0.0]])
    np.testing.assert_array_equal(mean_of_function(sums), [1.5, np.nan])
    np.testing.assert_array_equal(mean_of_function(SeparateColumns(sums.T.__getitem__)), [1.5, np.nan])
