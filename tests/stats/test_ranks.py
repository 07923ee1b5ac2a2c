"""The merge over ranks. Both ways give the same moments on every rank: those of all elements, each counted once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lightning_hooks.stats.accumulators import AccumulatorRows
from lightning_hooks.stats.accumulators.function import FunctionMean
from lightning_hooks.stats.accumulators.histogram import Histogram
from lightning_hooks.stats.accumulators.pairs import Pairs
from lightning_hooks.stats.measurement import Measurement
from lightning_hooks.stats.moments import MOMENTS
from lightning_hooks.stats.ranks import merge_gathered, merge_reduced
from lightning_hooks.stats.replicas import Replicas, replicas
from lightning_hooks.stats.requests import factors, stops
from lightning_hooks.stats.schema import ABS_SUM, COUNT, M2, MAX, MEAN, MIN, NONFINITE, UNDERFLOW, ZEROS
from lightning_hooks.stats.sections import Sections
from lightning_hooks.stats.table import Table

EXACT = 1e-12
HISTOGRAM, FUNCTION, PAIRS = Histogram(), FunctionMean("largest"), Pairs()


class FakeGroup:
    """A rank that takes part in reductions, of which several run in one process. Keeps the tensors that it received."""

    def __init__(self) -> None:
        self.collectives: list[str] = []
        self.bytes = 0

    def reduce(self, asked: Sequence[tuple[str, Tensor]]) -> Tensor:
        """Simulate one collective. All ranks must request the same operation on tensors of equal size."""
        ((operation, size),) = {(operation, len(tensor)) for operation, tensor in asked}
        stacked = torch.stack([tensor for _, tensor in asked])
        self.collectives.append(operation)
        self.bytes += size * stacked.element_size()
        return stacked.amax(0) if operation == "max" else stacked.sum(0)


def reduced(states: Sequence[Tensor], sections: Sections, owned: Sequence[Replicas], group: FakeGroup | None = None) -> Tensor:
    """The merged state, computed by reductions. The results of all ranks must agree to the last bit."""
    group = group or FakeGroup()
    steps = [merge_reduced(state, sections, own, len(states)) for state, own in zip(states, owned, strict=True)]
    answer: Tensor | None = None
    while True:
        asked, ends = [], []
        for step in steps:
            try:
                asked.append(next(step) if answer is None else step.send(answer.clone()))
            except StopIteration as end:
                ends.append(end.value)
        assert not (asked and ends), "one rank asks for a collective, and another does not"
        if ends:
            for end in ends:
                torch.testing.assert_close(end, ends[0], rtol=0, atol=0, equal_nan=True)
            return ends[0]
        answer = group.reduce(asked)


def gathered(states: Sequence[Tensor], sections: Sections, owned: Sequence[Replicas]) -> Tensor:
    tables = torch.stack([torch.cat([state, own.first, own.weight]) for state, own in zip(states, owned, strict=True)])
    return merge_gathered(tables, sections, owned[0])


def both(states: Sequence[Tensor], sections: Sections, owned: Sequence[Replicas]) -> list[Tensor]:
    return [reduced(states, sections, owned), gathered(states, sections, owned)]


def own(world: int, sections: Sections, held: Sequence[dict[int, int]] | None = None) -> list[Replicas]:
    """The copies of each rank; none by default."""
    return [replicas(held[rank] if held else {}, sections) for rank in range(world)]


def state_of(tensors: Sequence[Tensor]) -> Tensor:
    """The state of a rank, one row for each tensor."""
    table = Table(len(tensors))
    for row, tensor in enumerate(tensors):
        if tensor.numel():
            table.measuring.put(row, Measurement(tensor))
    return table.state


def truth(values: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The moments of all elements, each sum exact."""
    row = np.zeros(MOMENTS)
    row[MIN], row[MAX] = math.inf, -math.inf
    if len(values):
        with np.errstate(all="ignore"):
            finite = np.isfinite(values).all()
            mean = math.fsum(values / len(values)) if finite else values.mean()
            wide = np.asarray(values, dtype=np.longdouble)
            row[[COUNT, MEAN]] = len(values), mean
            row[M2] = float(np.square(wide - wide.mean()).sum())
            row[ABS_SUM] = np.abs(values).sum()
            row[[MIN, MAX]] = values.min(), values.max()
            row[ZEROS], row[NONFINITE] = (values == 0).sum(), (~np.isfinite(values)).sum()
            row[UNDERFLOW] = ((values != 0) & (np.abs(values) < np.finfo(np.float64).smallest_normal)).sum()
    return row


def assert_moments(got: np.ndarray[Any, Any], values: np.ndarray[Any, Any]) -> None:
    """Assert that moments equal those of the elements to 1e-12."""
    values = values.astype(np.float64)
    expected = truth(values)
    for column in (COUNT, MIN, MAX, ZEROS, NONFINITE, UNDERFLOW):
        assert got[column] == pytest.approx(expected[column], rel=0, abs=0, nan_ok=True), column
    if not np.isfinite(values).all():
        if np.isnan(values).any():
            assert np.isnan(got[MEAN])
        return
    magnitude = np.abs(values).mean() if len(values) else 0.0
    assert got[ABS_SUM] == pytest.approx(expected[ABS_SUM], rel=EXACT)
    assert abs(got[MEAN] - expected[MEAN]) <= EXACT * magnitude
    # The mean of each rank is rounded to float64. This rounding, not the merge, limits the precision of squared deviations
    # around a large mean.
    rounding = 4 * np.finfo(np.float64).eps * magnitude * math.sqrt(expected[M2] * len(values))
    assert abs(got[M2] - expected[M2]) <= EXACT * expected[M2] + rounding + len(values) * (1e-15 * magnitude) ** 2


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.lists(st.integers(0, 9), min_size=2, max_size=2), min_size=1, max_size=9),
    offset=st.sampled_from([0.0, 1.0, -1e3, 1e6, 1e9]),
    scale=st.sampled_from([1.0, 1e-3, 1e-140, 1e140]),
    special=st.sampled_from([None, math.inf, -math.inf, math.nan, 0.0]),
    seed=st.integers(0, 2**32 - 1),
)
def test_both_ways_give_the_moments_of_all_elements(
    sizes: list[list[int]], offset: float, scale: float, special: float | None, seed: int
) -> None:
    generator = np.random.default_rng(seed)
    numbers = [[scale * (offset + generator.standard_normal(size)) for size in of_rank] for of_rank in sizes]
    if special is not None:
        for of_rank in numbers:
            for values in of_rank:
                values[generator.random(len(values)) < 0.1] = special
    states = [state_of([torch.from_numpy(values) for values in of_rank]) for of_rank in numbers]
    sections = Sections(2)
    ways = [sections.moments_of(state).numpy() for state in both(states, sections, own(len(states), sections))]
    for moments in ways:
        for row in range(2):
            assert_moments(moments[row], np.concatenate([of_rank[row] for of_rank in numbers]))
    for column in range(MOMENTS):  # columns with infinite means included
        assert np.array_equal(np.isnan(ways[0][:, column]), np.isnan(ways[1][:, column])), column


@pytest.mark.parametrize("value", [1.5e307, -1.5e307, 5e-324, 1.0 / 3.0])
def test_equal_numbers_have_themselves_as_mean_whatever_their_size(value: float) -> None:
    states = [state_of([torch.full((n,), value, dtype=torch.float64)]) for n in (3, 9, 5)]
    for state in both(states, Sections(1), own(3, Sections(1))):
        moments = Sections(1).moments_of(state)[0]
        assert moments[MEAN].item() == pytest.approx(value, rel=1e-15) and moments[MIN] == moments[MAX] == value
        assert abs(value) > 1e300 or moments[M2].item() <= 17 * (1e-15 * value) ** 2


def test_a_nan_of_one_rank_is_the_extreme_of_all_in_any_order() -> None:
    tensors = [torch.tensor([1.0, 2.0]), torch.tensor([float("nan"), 5.0]), torch.tensor([-float("inf"), float("inf")])]
    for order in ((0, 1, 2), (1, 2, 0), (2, 0, 1)):
        for state in both([state_of([tensors[i]]) for i in order], Sections(1), own(3, Sections(1))):
            moments = Sections(1).moments_of(state)[0]
            assert moments[[MIN, MAX, MEAN]].isnan().all() and moments[[COUNT, NONFINITE]].tolist() == [6.0, 3.0]


def test_infinities_are_extremes_and_zeros_of_either_sign_are_equal() -> None:
    tensors = [torch.tensor([-0.0]), torch.tensor([0.0]), torch.tensor([float("inf"), -3.0])]
    for state in both([state_of([tensor, tensor.clamp(max=0.0)]) for tensor in tensors], Sections(2), own(3, Sections(2))):
        extremes = Sections(2).moments_of(state)[:, [MIN, MAX]]
        assert extremes.tolist() == [[-3.0, math.inf], [-3.0, 0.0]]


def test_requests_of_any_rank_are_those_of_all() -> None:
    sections = Sections(1, [AccumulatorRows(HISTOGRAM, (0,))], owners=2)
    states = [sections.blank() for _ in range(3)]
    for state, factor in zip(states, (1.0, 8.0, 2.0), strict=True):
        state[sections.requests][factors(2)] = torch.tensor([factor, 1.0], dtype=torch.float64)
    states[2][sections.requests][stops(2)] = torch.tensor([0.0, 1.0], dtype=torch.float64)
    for state in both(states, sections, own(3, sections)):
        requests = state[sections.requests]
        assert requests[factors(2)].tolist() == [8.0, 1.0] and requests[stops(2)].tolist() == [0.0, 1.0]
        assert all(map(torch.equal, sections.split(state), sections.split(sections.blank())))


def filled(seed: int, sections: Sections) -> Tensor:
    """A state in which every number is set. The numbers are such that sums do not depend on the order of addition."""
    state = sections.blank()
    parts = sections.split(state)
    generator = torch.Generator().manual_seed(seed)
    for row in range(len(parts[0])):
        parts[0][row] = Measurement(torch.randint(-8, 8, (4,), generator=generator).double()).moments
    for part in parts[1:]:
        part.copy_(torch.randint(0, 9, part.shape, generator=generator))
    return state


def test_histograms_sums_and_pairs_add_up_and_copies_count_once() -> None:
    sections = Sections(3, [AccumulatorRows(each, (0, 1)) for each in (FUNCTION, PAIRS, HISTOGRAM)])
    states = [filled(seed, sections) for seed in range(4)]
    for state in states:  # row 1 is a copy on every rank
        for part, first in zip(sections.split(state), sections.split(states[0]), strict=True):
            part[1] = first[1]
    # The micro-batches of a rank are not copies, so their numbers may differ from rank to rank.
    sections.split(states[2])[2][1, 3:] += 1.0
    # The first rank has measured nothing, as after a failure.
    states[0].copy_(sections.blank())
    owned = own(4, sections, [{1: rank} for rank in range(4)])
    for state in both(states, sections, owned):
        merged = sections.split(state)
        each = [sections.split(one) for one in states]
        for part in (1, 2, 3):
            torch.testing.assert_close(merged[part][0], sum(one[part][0] for one in each), rtol=0, atol=0)
            expected = each[1][part][1].clone()
            if part == 2:
                expected[3:] = sum(one[part][1, 3:] for one in each)
            torch.testing.assert_close(merged[part][1], expected, rtol=0, atol=0)
        torch.testing.assert_close(merged[0][1], each[1][0][1], rtol=1e-15, atol=1e-15)
        assert merged[0][:, COUNT].tolist() == [12.0, 4.0, 12.0]


def test_a_nan_of_a_copy_that_does_not_count_stays_out() -> None:
    sections = Sections(1, [AccumulatorRows(FUNCTION, (0,)), AccumulatorRows(PAIRS, (0,)), AccumulatorRows(HISTOGRAM, ())])
    states = [filled(seed, sections) for seed in range(2)]
    sections.split(states[1])[1][:] = math.nan
    sections.split(states[1])[2][0, :3] = math.nan
    for state in both(states, sections, own(2, sections, [{0: 0}, {0: 1}])):
        assert not sections.split(state)[1].isnan().any() and not sections.split(state)[2].isnan().any()


def test_the_shares_of_one_copy_count_together_and_other_copies_do_not() -> None:
    """Two copies of a tensor, each of which two ranks share, as under tensor parallelism: ranks 0 and 1, and ranks 2 and 3."""
    shares = [torch.arange(6.0), torch.arange(6.0, 9.0)]
    states = [state_of([shares[rank % 2]]) for rank in range(4)]
    owned = own(4, Sections(1), [{0: 2 * (rank // 2)} for rank in range(4)])
    whole = torch.arange(9.0).numpy()
    for state in both(states, Sections(1), owned):
        assert_moments(Sections(1).moments_of(state)[0].numpy(), whole)
    states[0] = states[2] = state_of([torch.empty(0)])  # a share without elements
    for state in both(states, Sections(1), owned):
        assert_moments(Sections(1).moments_of(state)[0].numpy(), shares[1].numpy())


@pytest.mark.parametrize("parallel", [2, 3])
def test_what_a_tensor_parallel_group_holds_several_times_counts_once(parallel: int) -> None:
    generator = torch.Generator().manual_seed(0)
    copied, shares = torch.randn(2, 5, generator=generator), torch.randn(2 * parallel, 4, generator=generator)
    copied[1, 0] = float("nan")
    sections, states, owned = Sections(3, [AccumulatorRows(HISTOGRAM, (0, 1))]), [], []
    for rank in range(2 * parallel):
        table = Table(3, [AccumulatorRows(HISTOGRAM, (0, 1))])
        table.measuring.put(0, Measurement(copied[rank // parallel]))
        table.measuring.put(1, Measurement(shares[rank]))
        states.append(table.state)  # no rank has measured the last row
        owned.append(replicas({}, sections, other_rows=(0, 1, 2), tensor_parallel=(rank % parallel, parallel)))
    for state in both(states, sections, owned):
        moments, histograms, *_ = sections.split(state)
        assert moments[:, COUNT].tolist() == [10.0, 8.0 * parallel, 0.0] and moments[0, NONFINITE] == 1.0
        assert histograms.sum(1).tolist() == [9.0, 8.0 * parallel]
        assert_moments(moments[1].numpy(), shares.double().flatten().numpy())
    states = [state_of([copied[0]]) for _ in range(2 * parallel)]
    owned = [
        replicas({}, Sections(1), other_rows=(0,), tensor_parallel=(rank % parallel, parallel)) for rank in range(2 * parallel)
    ]
    for state in both(states, Sections(1), owned):
        assert_moments(Sections(1).moments_of(state)[0].numpy(), copied[0].double().repeat(2).numpy())


def test_the_bytes_of_a_rank_and_its_collectives_do_not_depend_on_the_number_of_ranks() -> None:
    sections = Sections(20, [AccumulatorRows(HISTOGRAM, (3,))])
    found = []
    for world in (2, 16, 128):
        group = FakeGroup()
        reduced([filled(rank, sections) for rank in range(world)], sections, own(world, sections), group)
        found.append((group.collectives, group.bytes))
    assert found[0] == found[1] == found[2] and found[0][0] == ["max", "sum", "sum"]
    assert found[0][1] < 1.2 * sections.blank().nbytes


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")
def test_the_host_does_not_wait_for_a_device() -> None:
    sections = Sections(3, [AccumulatorRows(HISTOGRAM, (0,))])
    state, owned = filled(0, sections).cuda(), replicas({1: 0}, sections, device="cuda")
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        got = reduced_alone(state, sections, owned)
        tables = torch.cat([state, owned.first, owned.weight])[None]
        also = merge_gathered(tables, sections, owned)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    expected = both([state.cpu()], sections, [replicas({1: 0}, sections)])
    torch.testing.assert_close([got.cpu(), also.cpu()], expected, rtol=1e-14, atol=1e-14)


def reduced_alone(state: Tensor, sections: Sections, owned: Replicas) -> Tensor:
    steps = merge_reduced(state, sections, owned, 1)
    _, tensor = next(steps)
    while True:
        try:
            _, tensor = steps.send(tensor)
        except StopIteration as end:
            return end.value
