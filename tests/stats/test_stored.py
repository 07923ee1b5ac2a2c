"""Statistics from stored numbers equal statistics of the elements, for single rows and for rows that are displayed as one."""

import gc
import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_hooks.stats import pairs, schema
from lightning_hooks.stats.columns import by_starts
from lightning_hooks.stats.kernels import measure_many
from lightning_hooks.stats.statistics import compute
from lightning_hooks.stats.stored import (
    MOMENT_NAMES,
    PAIR_NAMES,
    StoredRows,
    encode_moments,
    encode_pairs,
    from_file,
    stored_moments,
)
from tests.stats.definitions import DEFINITIONS
from tests.stats.tensors import doubles

SIZES = st.lists(st.integers(1, 5), min_size=1, max_size=4)


def stored_from(rows, narrow=np.float64):
    """The stored numbers of rows, measured from their elements."""
    numbers = encode_moments(measure_many(doubles(rows)).numpy()).astype(narrow)
    by_name = {MOMENT_NAMES[column]: numbers[:, column] for column in stored_moments(magnitudes=True)}
    return from_file(by_name, by_name.__getitem__)


@settings(max_examples=40)
@given(st.lists(SIZES, min_size=1, max_size=3), st.integers(0, 1000))
def test_united_rows_have_the_statistic_of_all_elements(unions, seed):
    rng = np.random.default_rng(seed)
    rows = [rng.standard_normal(size) * 10 ** rng.uniform(-3, 3) for sizes in unions for size in sizes]
    starts = np.cumsum([0, *map(len, unions)])[:-1].tolist()
    united = stored_from(rows).united(by_starts(starts, len(rows)))
    for stat, function in {**DEFINITIONS, "count": len}.items():
        expected = [function(np.concatenate(rows[a:b])) for a, b in zip(starts, [*starts[1:], len(rows)], strict=True)]
        np.testing.assert_allclose(united.compute(stat), expected, rtol=1e-9, atol=1e-12, err_msg=stat)
        assert united.merges(stat)


@pytest.mark.parametrize("scale", [1e-25, 1.0, 1e20])
@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_float32_keeps_every_statistic_to_a_millionth(scale, offset):
    rng = np.random.default_rng(0)
    rows = [scale * (offset + rng.standard_normal(500)) for _ in range(4)]
    stored = stored_from(rows, np.float32)
    exact = measure_many(doubles(rows)).numpy()
    for stat in schema.STATISTICS:
        expected = compute(stat.name, exact)
        tolerance = 1e-6 * np.abs(rows).mean() if stat.name == "mean" else 0.0  # as for every mean of this package
        np.testing.assert_allclose(stored.compute(stat.name), expected, rtol=1e-6, atol=tolerance, err_msg=stat.name)


def test_an_infinity_a_nan_and_a_row_without_elements_stay_what_they_are():
    rows = [np.array([1.0, np.inf]), np.array([np.nan, 2.0]), np.array([])]
    stored = stored_from(rows, np.float32)
    assert stored.compute("norm")[0] == np.inf and np.isnan(stored.compute("norm")[1:]).all()
    assert stored.compute("nonfinite")[:2].tolist() == [1.0, 1.0] and np.isnan(stored.compute("nonfinite")[2])
    assert stored.compute("count").tolist() == [2.0, 2.0, 0.0]
    united = stored.united(by_starts([0, 2], 3))
    assert np.isnan(united.compute("norm")).all() and united.compute("nonfinite")[0] == 2.0


def test_without_moments_the_names_are_the_statistics_and_the_greatest_row_stands_for_all():
    numbers = {"norm": np.array([1.0, 3.0, np.nan])}
    stored = StoredRows(numbers, numbers.__getitem__)
    assert stored.statistics() == ("norm",) and not stored.merges("norm")
    united = stored.united(by_starts([0, 2], 3))
    np.testing.assert_array_equal(united.compute("norm"), [3.0, np.nan])


def pair_numbers(gradients, before, *, has_parts=True):
    """The moments and the sums over pairs of one row.

    Args:
        gradients: those of the micro-batches, [micro-batches, elements].
        before: the gradient of the step before, [elements].
        has_parts: whether a rule requested statistics of micro-batches.
    """
    now, parts = gradients.mean(0), len(gradients)
    sums = np.zeros((1, len(pairs.COLUMNS)))
    sums[0, [pairs.DOT, pairs.BEFORE, pairs.NOW]] = now @ before, before @ before, now @ now
    if has_parts:
        # Accumulation divides the loss by the number of micro-batches: the gradient is the sum of their gradients.
        sums[0, [pairs.SMALL, pairs.PARTS]] = np.sum((gradients / parts) ** 2), parts
        estimates = pairs.noise_estimates(sums, np.array([now @ now]))
        sums[0, [pairs.SIGNAL, pairs.NOISE]] = estimates[0]
    return encode_moments(measure_many(doubles([now])).numpy())[0], encode_pairs(sums)[0]


def stored_pairs(rows, narrow):
    """Stored numbers of rows from pairs of moments and sums; None instead of sums if a row keeps no pairs."""
    moments = np.array([moments for moments, _ in rows]).astype(narrow)
    sums = np.array([np.full(len(PAIR_NAMES), np.nan) if sums is None else sums for _, sums in rows]).astype(narrow)
    by_name = {MOMENT_NAMES[column]: moments[:, column] for column in stored_moments(magnitudes=True)}
    by_name |= {name: sums[:, column] for column, name in enumerate(PAIR_NAMES)}
    return from_file(by_name, by_name.__getitem__)


@pytest.mark.parametrize(("narrow", "rtol"), [(np.float64, 1e-9), (np.float32, 1e-5)])
def test_united_rows_have_the_statistics_of_their_gradients_as_one_vector(narrow, rtol):
    rng = np.random.default_rng(0)
    shapes = [3, 40, 7]
    rows = [
        (1.0 + rng.standard_normal((4, size)) * scale, rng.standard_normal(size))
        for size, scale in zip(shapes, (1, 3, 0.1), strict=True)
    ]
    numbers = [pair_numbers(*row) for row in rows]
    whole = pair_numbers(*(np.concatenate(each, axis=-1) for each in zip(*rows, strict=True)))
    united = stored_pairs(numbers, narrow).united(by_starts([0], len(rows)))
    alone = stored_pairs([whole], np.float64)
    for stat in pairs.PAIR_STATS:
        assert united.merges(stat)
        np.testing.assert_allclose(united.compute(stat), alone.compute(stat), rtol=rtol, err_msg=stat)
        assert np.isfinite(alone.compute(stat)).all()


def test_rows_without_micro_batches_or_without_pairs_have_no_part_in_those_of_united_rows():
    rng = np.random.default_rng(1)
    gradients, before = rng.standard_normal((4, 9)), rng.standard_normal(9)
    row = pair_numbers(gradients, before)
    compared = pair_numbers(100 * rng.standard_normal((4, 5)), rng.standard_normal(5), has_parts=False)
    plain = compared[0], None
    alone = stored_pairs([row], np.float64)
    for others in ([compared], [plain], [plain, compared]):
        stored = stored_pairs([row, *others], np.float64)
        for united in (stored.united(by_starts([0], 1 + len(others))), stored.taken(np.arange(2)).united(by_starts([0], 2))):
            for stat in ("micro_cosine", "noise_scale"):
                np.testing.assert_allclose(united.compute(stat), alone.compute(stat), rtol=1e-9, err_msg=stat)
    # A union of unions is the union of all rows.
    twice = stored_pairs([row, compared, plain], np.float64).united(by_starts([0, 1], 3)).united(by_starts([0], 2))
    np.testing.assert_allclose(twice.compute("micro_cosine"), alone.compute("micro_cosine"), rtol=1e-9)


def test_without_sums_over_pairs_their_statistics_do_not_merge():
    assert not any(stored_from([np.array([1.0, 2.0])]).merges(stat) for stat in (*pairs.PAIR_STATS, "p50", "dead_units"))


def test_stored_rows_are_freed_without_the_garbage_collector() -> None:
    numbers = {"count": np.ones(2), "moments.deviation": np.ones(2)}
    stored = StoredRows(numbers, numbers.__getitem__)
    stored.compute("std")
    freed = weakref.ref(stored)
    gc.disable()
    try:
        del stored
        assert freed() is None
    finally:
        gc.enable()
