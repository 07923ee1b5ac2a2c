"""The compiled kernel on pairs of tensors: it measures their difference without allocating it, or skips the pair."""

import importlib

import numpy as np
import pytest
import torch

from tests.stats.kernels.agreement import numbers

_native = pytest.importorskip("lightning_hooks.backends._native", reason="the package was installed without a compiler")
native = importlib.import_module("lightning_hooks.backends.native")

SETS = [name for name in ("avx512", "avx2", "baseline") if _native.choose_instructions(name)]
_native.choose_instructions(SETS[0])


@pytest.fixture(params=SETS)
def instructions(request):
    _native.choose_instructions(request.param)
    yield request.param
    _native.choose_instructions(SETS[0])


def measured(after, before):
    state = torch.zeros(9, dtype=torch.float64)
    return state if native.measure_many_into(state, np.array([0]), [after], [before]) == [] else None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("numel", [0, 1, 3, 15, 17, 100, 4097, 140_001])
def test_a_difference_is_measured_as_if_it_had_been_made(instructions, dtype, numel):
    before = torch.randn(numel, generator=torch.Generator().manual_seed(numel)).to(dtype)
    after = before + torch.full_like(before, 0.01) * before.roll(1)
    made = after.to(torch.promote_types(dtype, torch.float32)) - before
    assert torch.equal(measured(after, before), numbers(native.read(made)))


def test_equal_strides_without_gaps_are_measured_in_any_order():
    after = torch.randn(4, 6).t()
    before = after.clone(memory_format=torch.preserve_format) * 2
    assert torch.equal(measured(after, before), numbers(native.read(after - before)))


def test_what_does_not_lie_alike_is_left():
    grid = torch.randn(4, 6)
    for other in (grid.reshape(6, 4).t(), grid[:2], grid.double(), grid.to("meta")):
        assert measured(grid, other) is None
    assert measured(grid[:, :3], grid[:, :3]) is None


def test_lists_of_different_lengths_are_refused():
    with pytest.raises(TypeError, match="lists of one length"):
        native.measure_many_into(torch.zeros(9, dtype=torch.float64), np.array([0]), [torch.ones(2)], [])
