"""Histograms of numbers in all distributions over powers of two: each way of counting, compared with the reference."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.stats.kernels.agreement import DTYPES, agrees

SIZES = (1, 31, 32, 33, 500, 2047, 2048, 2049, 4100, 8192 + 2048 + 17)


def octaves(size, widest, generator):
    """Both signs, evenly over so many powers of two around 1."""
    exponents = torch.rand(size, generator=generator, dtype=torch.float64) * widest - widest / 2
    return torch.exp2(exponents) * (torch.randint(0, 2, (size,), generator=generator) * 2 - 1)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("widest", [0, 1, 4, 7, 8, 9, 12, 14, 16, 24, 28, 30, 40, 62, 66])
def test_few_and_many_powers_of_two(dtype, widest):
    generator = torch.Generator().manual_seed(widest)
    for size in SIZES:
        values = octaves(size, widest, generator)
        for signed in (values, values.abs(), -values.abs()):
            agrees(signed.to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("scale", [2.0**-126, 2.0**-124, 2.0**-118, 2.0**120], ids="{:.0e}".format)
def test_at_the_ends_of_the_range(dtype, scale):
    torch.manual_seed(0)
    for size in SIZES:
        agrees((torch.randn(size, dtype=torch.float64) * scale).to(dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_zeros_of_both_signs_and_what_is_not_finite_among_others(dtype):
    torch.manual_seed(0)
    for size in SIZES:
        for special in (0.0, -0.0, float("inf"), float("-inf"), float("nan")):
            for share in (0.01, 0.6, 1.0):
                values = torch.randn(size)
                values[torch.rand(size) < share] = special
                agrees(values.to(dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_few_far_from_all_others(dtype):
    torch.manual_seed(0)
    for far in (2.0**-14, 2.0**-9, 2.0**9, 2.0**15):
        values = torch.randn(20_000)
        values[::1999] *= far
        agrees(values.to(dtype))


@pytest.mark.parametrize("scale", [2.0**100, 2.0**113, 2.0**119, 2.0**125], ids="{:.0e}".format)
def test_what_is_smallest_does_not_fall_among_what_is_greatest(scale):
    torch.manual_seed(0)
    for smallest in (2.0**-126, 2.0**-123, 2.0**-112):
        values = torch.rand(20_000) * scale * (torch.randint(0, 2, (20_000,)) * 2 - 1)
        values[::999] = smallest
        agrees(values)


@pytest.mark.parametrize("value", [2.0**107, 2.0**99, 2.0**113], ids="{:.0e}".format)
def test_the_least_exponent_where_infinities_stretch_what_is_looked_for(value):
    """An exponent wraps around in a byte: an exponent of 1 must not be counted beside 255."""
    for dtype in (torch.float32, torch.bfloat16):
        values = torch.full((2, 2, 2048), value)
        values[:, 1] = float("inf")
        values = values.flatten()
        values[1] = 2.0**-126
        for signed in (values, -values, values * (torch.arange(8192) % 2 * 2 - 1)):
            agrees(signed.to(dtype))


def test_scattered_at_first_and_not_later_and_the_other_way_round():
    generator = torch.Generator().manual_seed(0)
    wide, narrow = octaves(50_000, 60, generator).float(), torch.randn(700_000, generator=generator)
    agrees(torch.cat([wide, narrow]))
    agrees(torch.cat([narrow, wide, narrow]))


@settings(deadline=None)
@given(
    st.integers(0, 2**31), st.integers(1, 9000), st.lists(st.tuples(st.integers(-140, 127), st.integers(1, 100)), min_size=1)
)
def test_any_mixture_of_powers_of_two(seed, size, parts):
    generator = torch.Generator().manual_seed(seed)
    exponents = torch.tensor([float(exponent) for exponent, _ in parts], dtype=torch.float64)
    weights = torch.tensor([float(weight) for _, weight in parts])
    chosen = exponents[torch.multinomial(weights, size, replacement=True, generator=generator)]
    signs = torch.randint(0, 2, (size,), generator=generator) * 2 - 1
    agrees((torch.exp2(chosen) * (1 + torch.rand(size, generator=generator, dtype=torch.float64) * 0.99) * signs).float())
