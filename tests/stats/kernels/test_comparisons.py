"""Sums of products and of squares of pairs of tensors, against exact sums; unsupported pairs are skipped."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from tests.stats.kernels.agreement import DTYPES, NOT_OURS, SETS, _native, native, needs_native, normal

pytestmark = needs_native


@pytest.fixture(params=SETS)
def kernel(request):
    """The compiled kernel with each instruction set."""
    _native.choose_instructions(request.param)
    yield native
    _native.choose_instructions(SETS[0])


def compared(kernel, tensors, others):
    state, firsts = torch.full((3 * len(tensors) + 2,), -7.0, dtype=torch.float64), 1 + 3 * np.arange(len(tensors))
    skipped = kernel.compare_many(state, firsts, tensors, others)
    assert state[0] == state[-1] == -7.0
    return state[1:-1].view(-1, 3), skipped


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("sizes", [(0,), (1,), (3, 5, 1, 33), (100_003, 7), (70_000, 0, 1_000_000)], ids=str)
def test_sums_are_those_of_float64(kernel, sizes, dtype):
    tensors = [nn.Parameter(normal(size, dtype=dtype, seed=size)) for size in sizes]
    others = [normal(size, dtype=dtype, seed=size + 1) + 0.5 for size in sizes]
    sums, skipped = compared(kernel, tensors, others)
    assert skipped == []
    for (product, before, now), tensor, other in zip(sums.tolist(), tensors, others, strict=True):
        new, old = tensor.detach().double().tolist(), other.double().tolist()
        products = [a * b for a, b in zip(new, old, strict=True)]
        assert product == pytest.approx(math.fsum(products), abs=1e-13 * math.fsum(map(abs, products)))
        assert before == pytest.approx(math.fsum(a * a for a in old), rel=1e-13)
        assert now == pytest.approx(math.fsum(a * a for a in new), rel=1e-13)


def test_subnormals_and_large_magnitudes_neither_vanish_nor_overflow(kernel):
    tensors = [torch.full((40,), 1e-42), torch.full((40,), 3e38), torch.full((40,), 6e-8, dtype=torch.float16)]
    sums, skipped = compared(kernel, tensors, tensors)
    assert skipped == []
    for row, tensor in zip(sums.tolist(), tensors, strict=True):
        assert row == [pytest.approx(40 * tensor[0].item() ** 2, rel=1e-13, abs=0.0)] * 3


def test_what_is_not_finite_makes_the_sums_not_finite(kernel):
    tensors = [torch.tensor([1.0, math.nan] * 20), torch.tensor([1.0, math.inf] * 20)]
    sums, _ = compared(kernel, tensors, [torch.ones(40)] * 2)
    assert sums[0].isnan().tolist() == [True, False, True]
    assert sums[1].tolist() == [math.inf, 40.0, math.inf]


def test_equal_strides_are_compared_in_any_order(kernel):
    tensor, other = normal(30, 40).t(), normal(30, 40, seed=1).t()
    sums, skipped = compared(kernel, [tensor], [other])
    assert skipped == []
    assert sums[0, 0].item() == pytest.approx((tensor.double() * other.double()).sum().item(), rel=1e-12)


def test_what_does_not_fit_is_named_and_left_alone(kernel):
    grid = normal(4, 6)
    tensors = [grid, grid, grid.double(), grid, grid.t(), grid]
    others = [grid, torch.zeros(6, 4), grid, torch.zeros(4, 5), torch.zeros(6, 4), grid]
    sums, skipped = compared(kernel, tensors, others)
    assert skipped == [1, 2, 3, 4]
    assert (sums == -7.0).all(1).tolist() == [False, True, True, True, True, False]


@pytest.mark.parametrize("tensor", NOT_OURS, ids=lambda tensor: f"{type(tensor).__name__}-{tensor.dtype}-{tensor.layout}")
def test_what_is_no_plain_tensor_here_is_left(kernel, tensor):
    assert compared(kernel, [tensor, torch.zeros(2)], [tensor, torch.ones(2)])[1] == [0]


def test_bad_arguments_are_refused(kernel):
    state, one = torch.zeros(3, dtype=torch.float64), torch.zeros(1)
    with pytest.raises((TypeError, ValueError), match="length|shorter|longer"):
        kernel.compare_many(state, np.array([0]), [one], [])
    with pytest.raises(TypeError, match="float64"):
        kernel.compare_many(state.float(), np.array([0]), [one], [one])
