"""The measurement of units in plain torch, against float64 by hand."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_hooks.stats.units import reference
from tests.stats.units.test_schema import INF, NAN, normal, units_by_hand


def by_hand(tensor, axis):
    data = tensor.detach().double().movedim(axis, -1)
    data = data.unsqueeze(0) if data.ndim == 1 else data.flatten(0, -2)
    return units_by_hand(data.numpy())


def is_near(found, want):
    np.testing.assert_allclose(found.numpy(), want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64])
@pytest.mark.parametrize(
    ("shape", "axis"), [((7,), 0), ((5, 3), -1), ((5, 3), 0), ((4, 3, 2, 5), 1), ((2, 3, 4), -3), ((0, 3), 1), ((3, 0), 1)]
)
def test_dtypes_and_axes(shape, axis, dtype):
    tensor = torch.from_numpy(3 * normal(*shape)).to(dtype)
    found = reference.measure(tensor, axis)
    assert found.dtype is torch.float64
    is_near(found, by_hand(tensor, axis))


@pytest.mark.parametrize(
    ("shape", "axis"), [((64, 10), 1), ((64, 10), 0), ((3, 5, 7, 4), 1), ((2, 9, 30), 2), ((1, 400), 1), ((400,), 0)]
)
def test_chunks(shape, axis, monkeypatch):
    tensor = torch.from_numpy(normal(*shape))
    want = reference.measure(tensor, axis)
    monkeypatch.setattr(reference, "_CHUNK", 16)
    is_near(reference.measure(tensor, axis), want.numpy())


def test_layouts():
    tensor = torch.from_numpy(normal(4, 6, 5, 3))
    for laid_out in (
        tensor.to(memory_format=torch.channels_last),
        tensor[::2],
        tensor.transpose(0, 2),
        tensor[:, :1].expand(4, 6, 5, 3),
    ):
        is_near(reference.measure(laid_out, 1), by_hand(laid_out, 1))


def test_what_is_not_finite():
    found = reference.measure(torch.tensor([[NAN, INF, INF, 1.0], [2.0, 1.0, -INF, 0.0]]), 1)
    np.testing.assert_equal(found.numpy(), [[NAN, NAN, NAN, 0], [INF, INF, INF, 0], [NAN, INF, INF, 0], [1, 1, 1, 1]])


def test_a_scalar_has_no_axis():
    with pytest.raises(IndexError):
        reference.measure(torch.tensor(1.0), 1)


@settings(deadline=None, max_examples=50, derandomize=True)
@given(seed=st.integers(0, 999))
def test_the_order_of_other_dimensions_does_not_matter(seed):
    tensor = torch.from_numpy(normal(5, 4, 6, seed=seed))
    order = torch.from_numpy(np.random.default_rng(seed).permutation(5))
    is_near(reference.measure(tensor[order], 1), reference.measure(tensor, 1).numpy())
    is_near(reference.measure(tensor.transpose(0, 2), 1), reference.measure(tensor, 1).numpy())


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_indices_are_those_of_one_hot_numbers(dtype):
    indices = torch.randint(5, (3, 4, 2), generator=torch.Generator().manual_seed(0)).to(dtype)
    want = by_hand(torch.nn.functional.one_hot(indices.long(), 6), -1)
    assert np.array_equal(reference.measure_indices(indices, 6).numpy(), want)


def test_indices_out_of_range_are_ignored_and_still_counted_as_elements():
    found = reference.measure_indices(torch.tensor([-1, 0, 7, 1, 1]), 2)
    assert found.tolist() == [[1.0, 1.0, 1.0, 4.0], [2.0, 2.0, 1.0, 3.0]]
    assert reference.measure_indices(torch.zeros(0, dtype=torch.int64), 2).tolist() == [[0.0] * 4] * 2


def test_zeros_that_are_not_stored():
    want = reference.measure(torch.tensor([[1.0, 0.0], [0.0, 0.0], [0.0, 0.0]]), 1)
    stored = reference.measure(torch.tensor([[1.0, 0.0]]), 1)
    assert torch.equal(reference.merge(stored, reference.zeros_units(2, 2, stored.device)), want)


@pytest.mark.slow
@pytest.mark.parametrize("axis", [1, -1])
def test_a_compiler_traces_it_without_a_graph_break(axis):
    compiled = torch.compile(lambda x: reference.units_of(x.relu(), axis), fullgraph=True, backend="aot_eager")
    tensor = torch.from_numpy(normal(4, 6, 5)).float()
    is_near(compiled(tensor), by_hand(tensor.relu(), axis))
