"""The numbers of units and how they merge."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_hooks.stats.units import reference
from lightning_hooks.stats.units.schema import ABS_MAX, COLUMNS, UNIT_MOMENTS, merge, merge_neighbours, rescale

NAN, INF = float("nan"), float("inf")


def units_by_hand(data):
    """Of float64 [elements, units]."""
    largest = np.abs(data).max(0) if len(data) else np.zeros(data.shape[1])
    return np.stack([data.sum(0), np.square(data).sum(0), largest, (data == 0).sum(0)], 1)


def normal(*shape, seed=0):
    data = np.random.default_rng(seed).normal(size=shape)
    return np.where(data > 1, 0.0, data)


def test_the_order_of_the_columns_is_that_of_the_contract():
    assert [moment.name for moment in UNIT_MOMENTS] == ["sum", "square", "abs_max", "zeros"]
    assert COLUMNS == 4


@settings(deadline=None, max_examples=100, derandomize=True)
@given(sizes=st.lists(st.integers(0, 9), min_size=1, max_size=6), units=st.integers(1, 7), seed=st.integers(0, 99))
def test_pieces_merge_to_the_whole(sizes, units, seed):
    parts = [normal(size, units, seed=seed + i) for i, size in enumerate(sizes)]
    merged = np.zeros((units, COLUMNS))
    for part in parts:
        merged = merge(merged, units_by_hand(part))
    np.testing.assert_allclose(merged, units_by_hand(np.concatenate(parts)), rtol=1e-14, atol=1e-14)


@settings(deadline=None, max_examples=100, derandomize=True)
@given(heads=st.integers(1, 6), size=st.integers(1, 6), elements=st.integers(1, 20), seed=st.integers(0, 99))
def test_heads_are_units_of_neighbouring_channels(heads, size, elements, seed):
    data = normal(elements, heads * size, seed=seed)
    by_head = data.reshape(elements, heads, size).transpose(0, 2, 1).reshape(-1, heads)
    np.testing.assert_allclose(merge_neighbours(units_by_hand(data), heads), units_by_hand(by_head), rtol=1e-13, atol=1e-13)


def test_heads_of_several_rows_at_once():
    rows = np.stack([units_by_hand(normal(5, 6, seed=seed)) for seed in range(3)])
    assert np.array_equal(merge_neighbours(rows, 2), np.stack([merge_neighbours(row, 2) for row in rows]))


@pytest.mark.parametrize("groups", [0, -1, 4, 7])
def test_heads_must_divide_the_units(groups):
    with pytest.raises(
        ValueError, match=f"groups={groups}: 6 units do not form {groups} groups of equal size; choose a divisor of 6"
    ):
        merge_neighbours(np.zeros((6, 4)), groups)


def test_merging_hides_no_nan():
    nan, number = units_by_hand(np.array([[NAN]])), units_by_hand(np.array([[2.0]]))
    for merged in (merge(nan, number), merge(number, nan), merge_neighbours(np.concatenate([nan, number]), 1)):
        assert np.isnan(merged[0, :3]).all() and merged[0, 3] == 0
    merged = reference.merge(torch.from_numpy(number), torch.from_numpy(nan))
    assert merged[0, ABS_MAX].isnan()
    assert merge(units_by_hand(np.array([[INF]])), units_by_hand(np.array([[-INF]])))[0, 1:].tolist() == [INF, INF, 0.0]


@pytest.mark.parametrize("of", [lambda x: x, torch.from_numpy], ids=["numpy", "torch"])
def test_rescaled_units_are_those_of_scaled_elements(of):
    data = normal(5, 3)
    units = of(units_by_hand(data))
    np.testing.assert_allclose(np.asarray(rescale(units, 0.25)), units_by_hand(data * 0.25), rtol=1e-14)
    assert np.array_equal(np.asarray(units), units_by_hand(data))
