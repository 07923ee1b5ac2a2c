"""The checks of the Triton kernels of histograms, for its interpreter (test_triton.py) and for a GPU (tests/cuda).

Triton decides at its import whether it interprets kernels, so that takes a process of its own:

TRITON_INTERPRET=1 python -m tests.stats.kernels.count_checks counted counted_in_lists
"""

from collections import Counter

import torch

from lightning_hooks.stats import kernels
from lightning_hooks.stats.accumulators import AccumulatorRows
from lightning_hooks.stats.accumulators.histogram import Histogram
from lightning_hooks.stats.histogram import BUCKETS, histogram
from lightning_hooks.stats.kernels import cuda, cuda_counts, on_cuda, reference
from lightning_hooks.stats.table import Table
from tests.stats._fallback import KeepsAll
from tests.stats.kernels import triton_checks
from tests.stats.kernels.interpreting import run
from tests.stats.kernels.triton_checks import BLOCK, DTYPES, INF, NAN, counting, normal, on, same, some


def here():
    """Whether the kernels are interpreted."""
    return triton_checks.DEVICE == "cpu"


def agrees(tensor, what=""):
    (given_tensor,) = on([tensor])
    got, want = cuda_counts.count(given_tensor), histogram(tensor)
    assert got is not None and torch.equal(got.cpu(), want), (what, tensor.dtype, tuple(tensor.shape))


def counted():
    """Histograms are equal to those of plain torch, as those of the compiled kernel for host memory are."""
    cuda._PROGRAMS = 3
    for dtype in DTYPES:
        for size in (0, 1, 31, BLOCK - 1, BLOCK, BLOCK + 1, 7 * BLOCK + 5):
            agrees(normal(size, dtype=dtype).relu(), "zeros")
            agrees(-normal(size, dtype=dtype))
        for widest in some((0, 8, 30, 31, 32, 60, 250)):
            exponents = torch.linspace(-widest, widest, 2 * BLOCK + 7, dtype=torch.float64) / 2
            spread = torch.exp2(exponents[torch.randperm(len(exponents), generator=torch.Generator().manual_seed(widest))])
            agrees((spread * normal(len(spread), dtype=torch.float64).sign()).to(dtype), widest)
        for special in (0.0, -0.0, INF, -INF, NAN, torch.finfo(dtype).tiny / 2, torch.finfo(dtype).max):
            tensor = normal(2 * BLOCK + 9, dtype=dtype)
            tensor[3], tensor[BLOCK + 1 :: 5], tensor[-1] = special, special, -special
            agrees(tensor, special)
            agrees(torch.full((BLOCK + 3,), special, dtype=dtype), special)
    for dtype in (torch.float16, torch.bfloat16):
        agrees(torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(dtype), "every pattern")
    for magnitude in (1e-310, 1e-39, 2.0**-126, 2.0**-125, 2.0**127, 2.0**128, 1e300):
        agrees(normal(BLOCK + 50, dtype=torch.float64) * magnitude, magnitude)
    grid = normal(100, 300)
    many = (grid.t(), grid[:, ::2], grid[3:-5, 2:-3], grid[:, :1].expand(-1, 9), grid[1, 1], grid.flatten()[1:])
    for tensor in (*many, grid.half().flatten()[3:], torch.nn.Parameter(grid), torch.complex(grid, grid).conj().imag):
        agrees(tensor)
    assert all(cuda_counts.count(tensor) is None for tensor in on([torch.arange(9), grid.to_sparse()]))


def counted_at_random():
    """Any mixture of powers of two, sizes and strides."""
    from hypothesis import given, settings
    from hypothesis import strategies as st

    @settings(deadline=None, max_examples=40 if here() else 200, database=None)
    @given(
        st.integers(0, 2**31),
        st.integers(1, 2 * BLOCK),
        st.integers(1, 3),
        st.sampled_from(DTYPES),
        st.lists(st.tuples(st.integers(-150, 130), st.integers(1, 100)), min_size=1, max_size=5),
        st.sampled_from((None, NAN, INF, -INF, 0.0)),
    )
    def check(seed, size, stride, dtype, parts, special):
        generator = torch.Generator().manual_seed(seed)
        exponents, weights = torch.tensor(parts, dtype=torch.float64).T
        chosen = exponents[torch.multinomial(weights, size, replacement=True, generator=generator)]
        signs = torch.randint(0, 2, (size,), generator=generator) * 2 - 1
        values = torch.exp2(chosen) * (1 + torch.rand(size, generator=generator, dtype=torch.float64)) * signs
        if special is not None:
            values[:: 1 + seed % 7] = special
        agrees(values.to(dtype)[::stride], (seed, size, stride, dtype, parts, special))

    check()


def counted_in_lists():
    """One launch clears, and one counts, for each dtype: of tensors, and of differences in float32 at least."""
    cuda._PROGRAMS = 3
    tensors = [normal(n, dtype=dtype, seed=n) for n in (0, 1, 999, 3 * BLOCK + 5) for dtype in DTYPES]
    tensors.append(normal(30, 40).t())
    before = [tensor.roll(1) / 3 for tensor in tensors]
    whole, other = torch.arange(5), normal(5)
    places = [(BUCKETS + 3) * i for i in range(len(tensors) + 2)]
    for less in (None, before):
        (out,) = on([torch.full((places[-1] + BUCKETS,), 7.0, dtype=torch.float64)])
        more = None if less is None else on([*less, whole, other.half()])
        counts = Counter()
        with counting(counts):
            left = cuda_counts.count_many_into(out, places, on([*tensors, whole, other]), more)
        assert left == [len(tensors), len(tensors) + 1][: 1 if less is None else 2]
        assert counts == {"clear_counts": len(DTYPES), "count_list": len(DTYPES)}, counts
        for i, (place, tensor) in enumerate(zip(places, tensors, strict=False)):
            wide = tensor.to(torch.promote_types(tensor.dtype, torch.float32))
            want = histogram(tensor if less is None else wide - less[i])
            assert torch.equal(out[place : place + BUCKETS].cpu(), want), (i, less is None)
            assert (out[place + BUCKETS : places[i + 1]] == 7).all()


def counted_in_a_table():
    """Calls of a module add up, and parameters are overwritten."""
    if here():
        kernels.on_device = lambda tensor: on_cuda
    table = Table(3, [AccumulatorRows(Histogram(), (0, 2))], device=triton_checks.DEVICE)
    fallback = KeepsAll()
    seen = [normal(n, seed=n) for n in (40, BLOCK + 1, 0)]
    write = table.writer(0, fallback)
    write(*on([torch.ones(9)]))
    table.clear()
    counts = Counter()
    with counting(counts):
        for tensor in on(seen):
            write(tensor)
    assert counts["count_one"] == 2, counts
    write(*on([torch.arange(5)]))
    assert [len(tensor) for _, tensor in fallback.came] == [5]
    for factor in (1, 2):
        assert table.measure_all([1, 2], on([seen[1], seen[0] * factor])) == []
    assert torch.equal(table.numbers("histogram", 0).cpu(), histogram(torch.cat(seen)))
    assert torch.equal(table.numbers("histogram", 2).cpu(), histogram(2 * seen[0]))
    for row, tensor in enumerate((torch.cat(seen), seen[1], 2 * seen[0])):
        same(table.moments[row], reference.measure(tensor), row)


CHECKS = {check.__name__: check for check in (counted, counted_at_random, counted_in_lists, counted_in_a_table)}

if __name__ == "__main__":
    run(CHECKS)
