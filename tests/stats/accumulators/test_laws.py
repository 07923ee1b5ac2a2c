"""Laws of accumulators: the merge does not depend on the order of parts, and merging with neutral numbers changes nothing."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from examples.singular_value import LargestSingularValue
from lightning_hooks.stats.accumulators import BUILT_IN
from lightning_hooks.stats.accumulators.function import FunctionMean
from lightning_hooks.stats.columns import STACKED, by_index, by_starts
from lightning_hooks.stats.measurement import Measurement
from lightning_hooks.stats.user_statistics import user_statistic

FEATURES = 3


def mean_square(tensor):
    return tensor.square().mean()


EVERY = (*BUILT_IN, FunctionMean("mean_square", user_statistic(mean_square, "stats")), LargestSingularValue(FEATURES))
MEASURED = [each for each in EVERY if each.from_one_tensor]
names = [each.name for each in EVERY]


def parts_of(accumulator, tensors):
    return torch.stack([accumulator.measure(Measurement(tensor), "output of 0") for tensor in tensors])


def rand(parts, accumulator):
    return torch.rand(parts, accumulator.width, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


def tensors_from(seed, count):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(1 + i, FEATURES, generator=generator, dtype=torch.float64) for i in range(count)]


@pytest.mark.parametrize("accumulator", MEASURED, ids=lambda each: each.name)
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), count=st.integers(1, 5))
def test_merged_parts_are_what_all_elements_together_give(accumulator, seed, count):
    tensors = tensors_from(seed, count)
    whole = accumulator.measure(Measurement(torch.cat(tensors)), "output of 0")
    torch.testing.assert_close(accumulator.merge(parts_of(accumulator, tensors), STACKED), whole, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("accumulator", EVERY, ids=names)
def test_every_way_to_merge_gives_the_same_numbers(accumulator):
    generator = torch.Generator().manual_seed(1)
    parts = parts_of(accumulator, tensors_from(0, 5)) if accumulator.from_one_tensor else rand(5, accumulator)
    index = torch.tensor([0, 0, 1, 1, 1])
    unions = torch.stack([accumulator.merge(parts[index == union], STACKED) for union in range(2)])
    torch.testing.assert_close(accumulator.merge(parts, by_index(index, 2)), unions, rtol=1e-12, atol=1e-12)
    found = torch.from_numpy(accumulator.merge(parts.numpy(), by_starts([0, 2], 5)))
    torch.testing.assert_close(found, unions, rtol=1e-12, atol=1e-12)
    order = torch.randperm(5, generator=generator)
    torch.testing.assert_close(
        accumulator.merge(parts[order], STACKED), accumulator.merge(parts, STACKED), rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize("accumulator", EVERY, ids=names)
def test_the_numbers_of_no_elements_change_nothing(accumulator):
    neutral = accumulator.neutral()
    assert neutral.shape == (accumulator.width,) == (len(accumulator.columns),)
    part = (
        parts_of(accumulator, tensors_from(0, 1))[0] if accumulator.from_one_tensor else torch.rand(accumulator.width).double()
    )
    torch.testing.assert_close(accumulator.merge(torch.stack([neutral, part, neutral]), STACKED), part, rtol=0, atol=0)
    both = accumulator.merge(torch.stack([neutral, neutral]), STACKED)
    torch.testing.assert_close(both, neutral, rtol=0, atol=0)


@pytest.mark.parametrize("accumulator", [each for each in MEASURED if not each.divided_first], ids=lambda each: each.name)
@pytest.mark.parametrize("factor", [0.5, 8.0])
def test_rescaled_numbers_are_those_of_the_scaled_tensor(accumulator, factor):
    tensor = tensors_from(3, 1)[0]
    before = accumulator.measure(Measurement(tensor), "output of 0")
    after = accumulator.measure(Measurement(tensor * factor), "output of 0")
    torch.testing.assert_close(accumulator.rescale(before[None], factor)[0], after, rtol=1e-12, atol=0)
    torch.testing.assert_close(accumulator.rescale(before[None], torch.tensor(factor))[0], after, rtol=1e-12, atol=0)


def test_each_statistic_is_served_by_one_accumulator():
    for stat in ("mean", "norm", "count", "histogram", "p50", "p2.5", "cosine", "noise_scale", "mean_square"):
        assert len([each.name for each in EVERY if each.serves(stat)]) == 1, stat
    assert not any(each.serves("nrom") for each in EVERY)


def test_rows_that_are_shown_as_one_have_the_micro_batches_of_each():
    pairs = next(each for each in BUILT_IN if each.name == "pairs")
    rows = np.array([[1.0, 1.0, 1.0, 2.0, 4.0, 0.0, 0.0], [2.0, 2.0, 2.0, 3.0, 4.0, 0.0, 0.0]])
    assert pairs.merge(rows, by_starts([0], 2), over_rows=True).tolist() == [[3.0, 3.0, 3.0, 5.0, 4.0, 0.0, 0.0]]
    assert pairs.merge(rows, by_starts([0], 2)).tolist() == [[3.0, 3.0, 3.0, 5.0, 8.0, 0.0, 0.0]]
