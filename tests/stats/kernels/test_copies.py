"""Copies of parameters into existing memory: the numbers are equal, and unsupported pairs are skipped."""

import pytest
import torch
from torch import nn

from tests.stats.kernels.agreement import DTYPES, NOT_OURS, native, needs_native, normal

pytestmark = needs_native


@pytest.fixture
def kernel():
    return native


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("sizes", [(0,), (1,), (3, 5, 1), (100_003, 7), (70_000, 0, 1_000_000)], ids=str)
def test_numbers_are_copied_bit_by_bit(kernel, sizes, dtype):
    tensors = [nn.Parameter(normal(size, dtype=dtype, seed=size)) for size in sizes]
    into = [torch.full_like(tensor, 7.0, requires_grad=False) for tensor in tensors]
    places = [tensor.data_ptr() for tensor in into]
    assert kernel.copy_many(into, tensors) == []
    assert all(map(torch.equal, into, tensors))
    assert [tensor.data_ptr() for tensor in into] == places
    assert not any(tensor.requires_grad for tensor in into)


def test_what_is_not_finite_and_the_sign_of_zero_stay(kernel):
    tensor = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 1e-45])
    into = [torch.zeros(5)]
    assert kernel.copy_many(into, [tensor]) == []
    assert into[0].view(torch.int32).tolist() == tensor.view(torch.int32).tolist()


def test_equal_strides_are_copied_in_any_order(kernel):
    tensor = normal(300, 400).t()
    into = [torch.zeros(300, 400).t()]
    assert kernel.copy_many(into, [tensor]) == []
    assert torch.equal(into[0], tensor)


def test_what_does_not_fit_is_named_and_left_alone(kernel):
    grid = normal(4, 6)
    tensors = [grid, grid, grid.double(), grid, grid.t(), grid]
    into = [torch.zeros(4, 6), torch.zeros(6, 4), torch.zeros(4, 6), torch.zeros(4, 5), torch.zeros(6, 4), torch.zeros(4, 6)]
    assert kernel.copy_many(into, tensors) == [1, 2, 3, 4]
    assert [bool(tensor.any()) for tensor in into] == [True, False, False, False, False, True]


@pytest.mark.parametrize("tensor", NOT_OURS, ids=lambda tensor: f"{type(tensor).__name__}-{tensor.dtype}-{tensor.layout}")
def test_what_is_no_plain_tensor_here_is_left(kernel, tensor):
    assert kernel.copy_many([tensor, torch.zeros(2)], [tensor, torch.ones(2)]) == [0]


def test_lists_of_different_lengths_are_refused(kernel):
    with pytest.raises((TypeError, ValueError), match="length|shorter|longer"):
        kernel.copy_many([torch.zeros(1)], [])
