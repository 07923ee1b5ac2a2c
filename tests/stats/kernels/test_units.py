"""The kernels of this machine measure the units that the reference measures, and the same moments as without units."""

import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_hooks.stats.histogram import BUCKETS, histogram
from lightning_hooks.stats.kernels import reference
from lightning_hooks.stats.moments import MOMENTS, neutral
from lightning_hooks.stats.units import reference as units_reference
from lightning_hooks.stats.units.schema import ABS_MAX, SQUARE, SUM, ZEROS
from tests.stats._fallback import KeepsAll
from tests.stats.kernels.agreement import DTYPES, NOT_OURS, SETS, _native, is_near, native, needs_native, normal, numbers

NAN, INF = float("nan"), float("inf")


def near(found, want, tensor, axis):
    """Assert that maxima and zeros are exact, and that sums are as accurate as those of moments."""
    assert torch.equal(found[:, ZEROS], want[:, ZEROS])
    torch.testing.assert_close(found[:, ABS_MAX], want[:, ABS_MAX], rtol=0, atol=0, equal_nan=True)
    sizes = units_reference.measure(tensor.abs(), axis)[:, SUM]
    for column, slack in ((SUM, 1e-6 * sizes), (SQUARE, 1e-6 * want[:, SQUARE])):
        known = torch.isfinite(want[:, column])
        torch.testing.assert_close(found[:, column][~known], want[:, column][~known], equal_nan=True)
        assert ((found - want)[:, column].abs() <= slack)[known].all(), (found[:, column], want[:, column])


def agrees(tensor, axis):
    """Compare every compiled instruction set with the reference."""
    want = units_reference.measure(tensor, axis)
    for name in SETS:
        _native.choose_instructions(name)
        moments, units = native.measure_units(tensor, axis)
        assert len(units) == 32 * tensor.shape[axis]
        near(numbers(units).view(-1, 4) if units else want, want, tensor, axis)
        is_near(numbers(moments), reference.measure(tensor))
    if SETS:
        _native.choose_instructions(SETS[0])


SHAPES = [
    ((64, 768), 1),
    ((64, 768), -1),
    ((300, 8), 1),
    ((1000, 10), 1),
    ((70, 1), 1),
    ((7,), 0),
    ((70_000,), 0),
    ((27, 5000), 1),
    ((60, 9000), 1),
    ((33, 1024), 1),
    ((129, 37), 1),
    ((768, 64), 0),
    ((8, 64, 14, 14), 1),
    ((9, 37, 7, 7), 1),
    ((8, 20, 3, 3), 1),
    ((5, 40, 2, 2), -3),
    ((2, 3, 200, 210), 1),
    ((2, 3, 33), 1),
    ((4, 20, 100), 0),
    ((1, 1, 1), 0),
    ((3, 1, 5000), 1),
    ((0, 3), 1),
    ((3, 0), 1),
    ((3, 0), 0),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("shape", "axis"), SHAPES, ids=str)
def test_shapes(shape, axis, dtype):
    tensor = normal(*shape, dtype=dtype)
    agrees(tensor, axis)
    agrees(tensor.relu(), axis)


VALUES = {
    "offset": lambda x: 1e4 + 1e-2 * x,
    "zeros": lambda x: x * 0,
    "negative zeros": lambda x: -(x * 0).abs(),
    "too large to square": lambda x: x * 1e30,
    "too small to square": lambda x: x * 1e-30,
    "some too small to square": lambda x: torch.where(torch.arange(x.shape[1]).view(1, -1, 1) % 7 == 3, x * 1e-30, x),
    "subnormals and zeros": lambda x: torch.where(x > 1, 1e-40, 0.0),
    "a subnormal": lambda x: x.flatten().index_fill(0, torch.tensor([x.numel() // 2]), 1e-40).view_as(x),
    "a NaN": lambda x: x.flatten().index_fill(0, torch.tensor([x.numel() // 2]), NAN).view_as(x),
    "a negative NaN": lambda x: x.flatten().index_fill(0, torch.tensor([x.numel() - 1]), -NAN).view_as(x),
    "infinities": lambda x: torch.where(x > 2.5, INF, torch.where(x < -3, -INF, x)),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("shape", [(40, 70, 1), (6, 33, 49), (6, 20, 200), (2, 3, 900), (30, 21, 4)], ids=str)
def test_values(shape, kind, dtype):
    agrees(VALUES[kind](normal(*shape)).to(dtype), 1)


@settings(deadline=None, max_examples=150, derandomize=True)
@given(
    outer=st.integers(1, 60),
    units=st.integers(1, 80),
    inner=st.sampled_from([1, 1, 2, 7, 15, 16, 17, 31, 49, 64, 100, 130]),
    dtype=st.sampled_from(DTYPES),
    zeros=st.booleans(),
)
def test_any_shape(outer, units, inner, dtype, zeros):
    tensor = normal(outer, units, inner, dtype=dtype)
    agrees(tensor.relu() if zeros else tensor, 1)


@pytest.mark.parametrize("order", [(0, 2, 3, 1), (1, 0, 2, 3), (3, 2, 1, 0)], ids=str)
def test_dense_permutations(order):
    laid_out = normal(4, 24, 5, 6).permute(order).contiguous().permute(np.argsort(order).tolist())
    for axis in range(4):
        agrees(laid_out, axis)


GAPS = [lambda x: x[::2], lambda x: x[:, :3], lambda x: x[:1].expand(4, 6), lambda x: x[:, :1].expand(4, 6)]


@needs_native
@pytest.mark.parametrize("gap", range(len(GAPS)))
def test_gaps_are_left_to_others(gap):
    assert native.measure_units(GAPS[gap](normal(4, 6)), 1) is None


@needs_native
def test_what_is_left_to_others():
    for tensor in NOT_OURS:
        assert native.measure_units(tensor, 0) is None
    for axis in (2, -3):
        assert native.measure_units(torch.ones(2, 3), axis) is None
    assert native.measure_units(torch.tensor(1.0), 0) is None
    assert native.measure_units(torch.tensor(1.0), -1) is None


@needs_native
@pytest.mark.parametrize(
    ("shape", "axis"), [((300, 768), 1), ((300, 4000), 1), ((64, 70, 14, 14), 1), ((300, 10), 1), ((99,), 0)]
)
def test_moments_are_rounded_as_without_units(shape, axis):
    tensor = normal(*shape)
    assert native.measure_units(tensor, axis)[0] == native.read(tensor)


@needs_native
@pytest.mark.parametrize(
    ("shape", "axis"),
    [((3000, 768), 1), ((70, 40_000), 1), ((64, 70, 30, 30), 1), ((50, 64, 7, 7), 1), ((400_000, 2), 1), ((3, 2, 300_000), 1)],
)
def test_the_numbers_do_not_depend_on_the_number_of_threads(shape, axis):
    before, found = torch.get_num_threads(), {}
    tensor = normal(*shape).relu()
    try:
        for threads in (1, 2, 3, 7):
            torch.set_num_threads(threads)
            found[threads] = [native.measure_units(tensor, axis) for _ in range(2)]
    finally:
        torch.set_num_threads(before)
    assert all(each == found[1][0] for several in found.values() for each in several)


class Units:
    """The attributes of a table that a writer with an axis reads."""

    def __init__(self, units, histogram=False):
        self.state = torch.cat([neutral(1).flatten(), torch.zeros(BUCKETS if histogram else 0, dtype=torch.float64)])
        self.magnitudes = True
        self.units = [units]


@needs_native
@pytest.mark.parametrize("histogram_too", [False, True])
@pytest.mark.parametrize("axis", [1, -2])
def test_a_writer_merges_moments_histogram_and_units(histogram_too, axis):
    tensors = [normal(size, 20, 9, seed=size).relu() for size in (3, 1, 5)]
    table, fallback = Units(torch.zeros(20, 4, dtype=torch.float64), histogram_too), _fallback()
    write = native.writer(table, 0, MOMENTS if histogram_too else None, fallback, axis)
    for tensor in tensors:
        write(tensor)
    whole = torch.cat(tensors)
    near(table.units[0], units_reference.measure(whole, 1), whole, 1)
    is_near(table.state[:MOMENTS], reference.measure(whole))
    if histogram_too:
        assert torch.equal(table.state[MOMENTS:], histogram(whole))
    assert fallback.came == [] and fallback.calls == 3


def _fallback():
    class Fallback(native.FallbackWriter):
        def __init__(self):
            self.direct, self.came = True, []

        def __call__(self, row, tensor):
            self.came.append((row, tensor))

    return Fallback()


@needs_native
@pytest.mark.parametrize(
    "units",
    [
        None,
        torch.zeros(5, 4, dtype=torch.float64),
        torch.zeros(6, 3, dtype=torch.float64),
        torch.zeros(6, 4),
        torch.zeros(4, 6, dtype=torch.float64).t(),
        "no tensor",
    ],
    ids=["none", "other units", "other columns", "float32", "not contiguous", "no tensor"],
)
def test_nothing_is_written_where_the_units_do_not_fit(units):
    table, fallback, tensor = Units(units), _fallback(), torch.ones(2, 6)
    native.writer(table, 0, None, fallback, 1)(tensor)
    assert len(fallback.came) == 1 and fallback.came[0][1] is tensor
    assert torch.equal(table.state, neutral(1).flatten())
    assert not isinstance(units, torch.Tensor) or not units.any()


@needs_native
def test_the_fallback_takes_what_the_kernel_does_not_measure():
    table = Units(torch.zeros(3, 4, dtype=torch.float64))
    fallback = _fallback()
    write = native.writer(table, 0, None, fallback, 2)
    for tensor in (*NOT_OURS, torch.ones(2, 3), torch.tensor(1.0)):
        write(tensor)
    table.units = []
    write(torch.ones(1, 1, 3))
    del table.units
    write(torch.ones(1, 1, 3))
    assert len(fallback.came) == len(NOT_OURS) + 4 and not table.state[:1].any()


@needs_native
def test_units_may_be_replaced_between_calls():
    table = Units(None)
    write = native.writer(table, 0, None, _fallback(), -1)
    for units in (3, 5):
        table.units = [torch.zeros(units, 4, dtype=torch.float64)]
        write(torch.ones(2, units))
        assert table.units[0].tolist() == [[2.0, 2.0, 1.0, 0.0]] * units


@needs_native
def test_writers_reject_an_axis_that_no_tensor_has():
    with pytest.raises(ValueError, match="no tensor has axis 40000"):
        native.writer(Units(None), 0, None, KeepsAll(), 40_000)
    with pytest.raises(TypeError):
        native.writer(Units(None), 0, None, KeepsAll(), "1")


@needs_native
def test_threads_of_python_measure_at_once():
    tensor = normal(900, 700)
    want, results = native.measure_units(tensor, 1), []
    work = lambda: results.extend(native.measure_units(tensor, 1) for _ in range(10))  # noqa: E731
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [want] * 40
