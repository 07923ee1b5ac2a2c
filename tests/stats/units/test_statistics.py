"""Each statistic of units against a value computed by hand, and its values in edge cases."""

import math

import numpy as np
import pytest

from lightning_hooks.stats.units import reference
from lightning_hooks.stats.units.statistics import FORMULAS, NAMES, compute
from tests.stats.units.test_schema import NAN, normal, units_by_hand


def of(data, stat, **options):
    return float(compute(stat, units_by_hand(np.asarray(data, dtype=float)), len(data), **options))


def units(abs_max, square=None, total=None):
    """Units with these numbers."""
    abs_max = np.asarray(abs_max, dtype=float)
    square = np.square(abs_max) if square is None else np.asarray(square, dtype=float)
    return np.stack([square if total is None else np.asarray(total, dtype=float), square, abs_max, abs_max * 0], 1)


def test_the_names_are_those_of_the_contract():
    assert (
        set(NAMES)
        == set(FORMULAS)
        >= {
            "dead_units",
            "outlier_units",
            "unit_max_over_median",
            "load_cv",
            "effective_units",
            "top_unit",
        }
    )


def test_dead_units_tell_dead_ones_from_sparse_ones():
    sparse = np.zeros((4, 4)) + np.eye(4)
    half_dead = np.array([[1.0, 2.0, 0.0, 0.0]] * 4)
    assert (sparse == 0).mean() == 0.75
    assert of(sparse, "dead_units") == 0.0
    assert of(half_dead, "dead_units") == 0.5
    assert of([[9e-6, -9e-6, 1e-5, -1e-5]], "dead_units") == 0.5


def test_outliers_are_large_and_far_from_the_usual():
    data = np.random.default_rng(0).normal(size=(2000, 64))
    assert of(data, "outlier_units") == 0
    data[7, 3] = 700.0
    data[9, 5] = -2000.0
    data[9, 6] = 600.0
    assert of(data, "outlier_units") == 2
    assert of(data / 10, "outlier_units") == 1  # 70 is not above 100


def test_the_limit_for_outliers_is_a_thousand_medians_of_normal_elements():
    data = np.random.default_rng(0).normal(size=(20_000, 32)) * 0.3
    limit = 1000 * np.median(np.abs(data))
    for factor, want in ((0.97, 0), (1.03, 1)):
        data[0, 0] = limit * factor
        assert of(data, "outlier_units") == want


def test_medians_are_those_of_units_that_are_not_dead():
    mostly_dead = np.zeros((10, 9))
    mostly_dead[:, :4] = 150.0
    mostly_dead[0, 0] = 300.0
    assert of(mostly_dead, "unit_max_over_median") == 2.0
    assert of(mostly_dead, "outlier_units") == 0
    assert of([[1.0, -2.0, 3.0, 100.0, 0.0]], "unit_max_over_median") == 40.0
    assert of([[1.0, -2.0, 100.0]], "unit_max_over_median") == 50.0


@pytest.mark.parametrize("many", [1, 2, 3, 8, 9])
@pytest.mark.parametrize("zeros", [0, 1, 5])
def test_the_median_is_that_of_numpy(many, zeros):
    values = np.abs(normal(1, many))[0] + 0.1
    every = np.random.default_rng(1).permutation(np.concatenate([values, np.zeros(zeros)]))
    assert compute("unit_max_over_median", units(every)) == pytest.approx(values.max() / np.median(values))


def test_the_load_is_the_sum_where_no_element_is_negative_and_the_energy_otherwise():
    probabilities = np.array([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]])
    want = math.exp(-0.75 * math.log(0.75) - 0.25 * math.log(0.25))
    assert of(probabilities, "effective_units", nonnegative=True) == pytest.approx(want)
    assert of(probabilities, "load_cv", nonnegative=True) == pytest.approx(np.std([1.5, 0.5, 0]) / np.mean([1.5, 0.5, 0]))
    signed = np.array([[1.0, 2.0], [-1.0, -2.0]])
    assert of(signed, "load_cv") == pytest.approx(np.std([2, 8]) / 5)


def test_the_load_of_indices_is_their_number():
    import torch

    found = reference.measure_indices(torch.tensor([[0, 1], [0, 2], [0, 1]]), 4).numpy()
    for nonnegative in (False, True):
        assert float(compute("load_cv", found, 6, nonnegative)) == pytest.approx(np.std([3, 2, 1, 0]) / 1.5)
        assert float(compute("busiest_unit", found, 6, nonnegative)) == 0
        assert float(compute("top_unit", found, 6, nonnegative)) == 0
    assert float(compute("dead_units", found, 6)) == 0.25


@pytest.mark.parametrize("many", [1, 4, 33])
def test_equal_loads(many):
    data = np.full((3, many), 0.5)
    assert of(data, "effective_units") == pytest.approx(many)
    assert of(data, "load_cv") == 0.0


def test_one_unit_that_carries_all():
    data = np.zeros((3, 8))
    data[:, 5] = 2.0
    assert of(data, "effective_units") == 1.0
    assert of(data, "load_cv") == pytest.approx(math.sqrt(7))
    assert of(data, "top_unit") == of(data, "busiest_unit") == 5


def test_the_top_unit_has_the_largest_magnitude_and_the_busiest_one_the_largest_load():
    data = [[0.0, -3.0, 2.0], [0.0, 0.0, -2.9]]
    assert of(data, "top_unit") == 1
    assert of(data, "busiest_unit") == 2
    assert float(compute("top_unit", units([2, 2, 2], square=[4, 8, 5]))) == 1
    assert float(compute("busiest_unit", units([2, 4, 3], square=[9, 9, 9]))) == 1


def test_all_zero():
    want = {"dead_units": 1.0, "outlier_units": 0.0, "top_unit": 0.0, "busiest_unit": 0.0}
    for stat in NAMES:
        np.testing.assert_equal(of(np.zeros((3, 4)), stat), want.get(stat, NAN))


def test_one_unit():
    want = {"dead_units": 0.0, "outlier_units": 0.0, "unit_max_over_median": 1.0, "load_cv": 0.0, "effective_units": 1.0}
    want["unit_variation"] = math.sqrt(4 / 5)
    for stat in NAMES:
        assert of([[3.0], [-1.0]], stat) == want.get(stat, 0.0)


def test_units_that_have_one_value_in_the_whole_step_do_not_vary():
    assert of(np.tile([5.0, -3.0, 0.0], (7, 1)), "unit_variation") == 0.0
    data = np.random.default_rng(0).normal(size=(2000, 8))
    assert of(data, "unit_variation") == pytest.approx(1.0, abs=0.01)
    assert of(100.0 + data, "unit_variation") == pytest.approx(0.01, rel=0.05)


@pytest.mark.parametrize("error", [-1e-7, 0.0, 1e-7])
@pytest.mark.parametrize("last", [-4.6, -4.6 * (1 + 1e-4)])
def test_equal_elements_do_not_vary_and_nearly_equal_ones_do_whatever_the_error_of_their_sums_in_float32(last, error):
    square = 15 * 4.6**2 + last**2
    variation = float(compute("unit_variation", units([-last], [square * (1 + error)], [-15 * 4.6 + last]), 16.0))
    assert variation == 0.0 if last == -4.6 else 1e-6 <= variation < 1e-3


def test_a_nan_is_not_hidden():
    data = np.ones((3, 4))
    data[:, 0] = 0.0
    data[1, 2] = NAN
    want = {"dead_units": 0.25, "top_unit": 2.0, "busiest_unit": 2.0}
    for stat in NAMES:
        np.testing.assert_equal(of(data, stat), want.get(stat, NAN))


def test_an_infinity():
    data = np.ones((3, 4))
    data[1, 2] = -np.inf
    want = {"dead_units": 0.0, "outlier_units": 1.0, "unit_max_over_median": np.inf, "top_unit": 2.0, "busiest_unit": 2.0}
    for stat in NAMES:
        np.testing.assert_equal(of(data, stat), want.get(stat, NAN))


def test_no_units_and_no_elements():
    for stat in NAMES:
        assert np.isnan(compute(stat, np.zeros((0, 4)), 3))
        assert np.isnan(compute(stat, np.zeros((3, 4)), 0))
        assert compute(stat, np.zeros((5, 0, 4)), 3).shape == (5,)


@pytest.mark.parametrize("stat", NAMES)
def test_several_rows_at_once(stat):
    rows = [normal(6, 5, seed=seed) * 10**seed for seed in range(3)]
    rows[1] = np.abs(rows[1])
    elements, nonnegative = np.array([6.0, 6.0, 0.0]), np.array([False, True, False])
    want = [compute(stat, units_by_hand(*args[:1]), *args[1:]) for args in zip(rows, elements, nonnegative, strict=True)]
    np.testing.assert_equal(compute(stat, np.stack([units_by_hand(row) for row in rows]), elements, nonnegative), want)


def test_statistics_leave_the_units_as_they_are():
    units = units_by_hand(normal(6, 5))
    before = units.copy()
    for stat in NAMES:
        compute(stat, units, 6)
    assert np.array_equal(units, before)
