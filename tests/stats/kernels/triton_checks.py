"""The checks of the Triton kernels, for its interpreter (test_triton.py) and for a GPU (tests/cuda).

Triton decides at its import whether it interprets kernels, so that takes a process of its own:

TRITON_INTERPRET=1 python -m tests.stats.kernels.triton_checks sizes offsets
"""

import math
import warnings
from collections import Counter
from contextlib import contextmanager, nullcontext

import numpy as np
import torch

from lightning_hooks import StatsMonitor, Watch, instrument
from lightning_hooks.hooks.places import Places
from lightning_hooks.stats import kernels
from lightning_hooks.stats.accumulators import AccumulatorRows
from lightning_hooks.stats.accumulators.histogram import Histogram
from lightning_hooks.stats.accumulators.units import Units
from lightning_hooks.stats.kernels import (
    cuda,
    cuda_units,
    in_graphs,
    on_cuda,
    reference,
    triton_code,
    triton_counts,
    triton_merge,
    triton_pairs,
    triton_units,
)
from lightning_hooks.stats.measurement import Measurement
from lightning_hooks.stats.moments import merge, neutral
from lightning_hooks.stats.schema import ABS_SUM, COUNT, M2, MAX, MEAN, MIN, NONFINITE, UNDERFLOW, ZEROS
from lightning_hooks.stats.table import Table
from lightning_hooks.stats.units import reference as units_reference
from lightning_hooks.stats.units.spec import UnitSpec
from tests.stats._fallback import KeepsAll
from tests.stats.kernels.interpreting import run

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
EXACT = [COUNT, MIN, MAX, ZEROS, NONFINITE, UNDERFLOW]
BLOCK = triton_code.BLOCK
NAN, INF = float("nan"), float("inf")
DEVICE = "cpu"  # of the tensors; what is expected is computed on the CPU


def agrees(tensor, what=""):
    got, want = cuda.measure(tensor.to(DEVICE)), reference.measure(tensor)
    same(got, want, f"{what} {tensor.dtype} {tuple(tensor.shape)}")


def agrees_without_magnitudes(tensor, what=""):
    out = neutral(1, DEVICE)
    assert cuda.measure_many_into(out, [0], [tensor.to(DEVICE)], magnitudes=False) == []
    same_without_magnitudes(out[0], reference.measure(tensor), f"{what} {tensor.dtype} {tuple(tensor.shape)}")


def same_without_magnitudes(got, want, what):
    """The columns that are measured without magnitudes agree, and the others are NaN, or 0 of no elements."""
    got = got.clone()
    for column in (ABS_SUM, UNDERFLOW):
        assert got[column].isnan() or want[COUNT] == 0, (what, got)
        got[column] = want[column]
    same(got, want, what)


def some(values):
    """All values on a GPU, every second one in the interpreter, in which a block takes 20 ms."""
    return values if DEVICE != "cpu" else values[::2]


def on(tensors):
    """The same on the device."""
    return [tensor.to(DEVICE) for tensor in tensors]


def same(got, want, what):
    got = got.cpu()
    torch.testing.assert_close(got[EXACT], want[EXACT], rtol=0, atol=0, equal_nan=True, msg=lambda m: f"{what}: {m}")
    near(got[MEAN], want[MEAN], 1e-6 * want[ABS_SUM] / max(want[COUNT], 1), what)
    near(got[ABS_SUM], want[ABS_SUM], 1e-6 * want[ABS_SUM], what)
    # As of the compiled kernel: 1e-6 of the standard deviation, and of the norm where the data hardly vary.
    finest = 5e-324 * want[COUNT]
    near(got[M2], want[M2], 2e-6 * want[M2] + 1e-24 * want[COUNT] * want[MEAN].square() + finest, what)


def near(got, want, slack, what):
    if torch.isfinite(want):
        assert abs(got - want) <= slack, (what, got.item(), want.item(), float(slack))
    else:
        torch.testing.assert_close(got, want, equal_nan=True, msg=lambda m: f"{what}: {m}")


def normal(*shape, dtype=torch.float32, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)


def sizes():
    for dtype in DTYPES:
        for size in (0, 1, 2, 7, 8, 9, 100, *(k * BLOCK + d for k in (1, 2, 3) for d in (-1, 0, 1)), 5 * BLOCK + 17):
            agrees(normal(size, dtype=dtype))
    agrees(normal((triton_merge.CHUNK + 2) * BLOCK + 3), "more rows than are merged at once")


def several_blocks_each():
    """What a program does where there are more blocks than programs."""
    cuda._PROGRAMS = 3
    for dtype in DTYPES:
        for size in (5, 3 * BLOCK, 7 * BLOCK - 1, 7 * BLOCK + 1, 10 * BLOCK):
            agrees(normal(size, dtype=dtype) + 3)
    holed = normal(9 * BLOCK)
    for place in (0, 4 * BLOCK, 9 * BLOCK - 1):
        agrees(holed.index_fill(0, torch.tensor([place]), NAN))
        agrees(holed.index_fill(0, torch.tensor([place]), INF))
    tensors = [normal(size, dtype=dtype) for size in (0, 3, 4 * BLOCK + 1) for dtype in DTYPES]
    for got, tensor in zip(cuda.measure_many(on(tensors)), tensors, strict=True):
        same(got, reference.measure(tensor), "several")


def magnitudes():
    for dtype in DTYPES:
        for magnitude in some((1e-38, 1e-30, 1e-25, 1e-12, 1.0, 1e12, 1e30, 1e20, 3e38, 1e37)):
            data = torch.linspace(-1, 1, BLOCK + 905, dtype=torch.float64) * magnitude
            for tensor in (data.abs().to(dtype), data[:7].to(dtype), data.flip(0).sin().to(dtype)):
                agrees(tensor, magnitude)
    for magnitude in (1e-320, 1e-300, 1e-160, 1e160, 1e300):
        agrees(torch.linspace(-1, 1, 5001, dtype=torch.float64) * magnitude, magnitude)


def offsets():
    for dtype in DTYPES:
        for mean, spread in some(((-1e4, 1e-2), (1e4, 1e-2), (1.0, 1e-6), (1e4, 10.0), (1.1, 0.0), (3.0, 0.0))):
            agrees((mean + spread * normal(3 * BLOCK + 77, dtype=torch.float64)).to(dtype), (mean, spread))
        for value, busy in some(
            ((1.1, 1), (1.1, 4000), (3e16, 4000), (3e16, 100), (0.7, 100))
        ):  # roundings that all go one way
            tensor = torch.zeros(2 * BLOCK, dtype=torch.float64)
            tensor[:busy] = value
            agrees(tensor.to(dtype), value)
            agrees((tensor - value / 3).to(dtype), value)
    agrees(normal(5 * BLOCK).sort().values)
    agrees(torch.cat([torch.zeros(BLOCK), torch.full((BLOCK,), 1e4), 1e4 + 1e-2 * normal(9999)]))


def odd():
    for dtype in DTYPES:
        for kind in ([NAN], [INF], [-INF], [INF, -INF], [NAN, INF, -INF], [-0.0, 0.0], [0.0]):
            last = BLOCK + 40 - len(kind)
            for size, place in some(((6, 0), (6, 6 - len(kind)), (BLOCK + 40, last), (BLOCK + 40, 0))):
                tensor = normal(size, dtype=dtype)
                tensor[place : place + len(kind)] = torch.tensor(kind, dtype=dtype)
                agrees(tensor, kind)
            agrees(torch.tensor(kind * 9, dtype=dtype), kind)
        tiny = torch.finfo(dtype).tiny
        least = tiny * torch.finfo(dtype).eps
        mixed = normal(BLOCK + 9, dtype=dtype)
        mixed[::3], mixed[1::7], mixed[2::11] = tiny / 2, 0.0, -least
        agrees(mixed, "subnormals")
        agrees(torch.full((50,), least, dtype=dtype), "the least")
        agrees(torch.tensor([tiny, -tiny, tiny / 2, 0.0] * 50, dtype=dtype), "around the least normal")
    for dtype in (torch.float16, torch.bfloat16):
        bits = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(dtype)
        agrees(bits, "every pattern")
        agrees(bits[torch.isfinite(bits)], "every number")


def without_magnitudes():
    """What is not finite, and what leaves the range of float32, is found without sums of magnitudes."""
    for dtype in DTYPES:
        for size in (0, 1, 9, BLOCK, 2 * BLOCK + 1):
            agrees_without_magnitudes(normal(size, dtype=dtype) + 3)
        for kind in ([NAN], [INF], [-INF], [INF, -INF], [NAN, INF, -INF], [-0.0, 0.0]):
            for place in (0, BLOCK, BLOCK + 40 - len(kind)):
                tensor = normal(BLOCK + 40, dtype=dtype)
                tensor[place : place + len(kind)] = torch.tensor(kind, dtype=dtype)
                agrees_without_magnitudes(tensor, (kind, place))
            agrees_without_magnitudes(torch.tensor(kind * 9, dtype=dtype), kind)
        for magnitude in (1e-38, 1e-25, 1e-12, 1e12, 1e20, 3e38):
            data = torch.linspace(-1, 1, BLOCK + 5, dtype=torch.float64) * magnitude
            agrees_without_magnitudes(data.to(dtype), magnitude)
            # The first elements say nothing about the size of the rest.
            agrees_without_magnitudes(torch.cat([normal(1024), data]).to(dtype), magnitude)
        least = torch.finfo(dtype).tiny * torch.finfo(dtype).eps
        agrees_without_magnitudes(torch.tensor([least, 0.0, -least, 1.0] * 50, dtype=dtype), "subnormals")


def agrees_in_units(tensor, axis, what=""):
    got, want = cuda_units.measure(tensor.to(DEVICE), axis).cpu(), units_reference.measure(tensor, axis)
    what = f"{what} {tensor.dtype} {tuple(tensor.shape)} {axis}"
    # As of the compiled kernel: sums to 1e-6 of the sums of magnitudes and squares, the rest exactly.
    torch.testing.assert_close(got[:, 2:], want[:, 2:], rtol=0, atol=0, equal_nan=True, msg=lambda m: f"{what}: {m}")
    sizes = units_reference.measure(tensor.abs(), axis)
    for column in (0, 1):
        for unit in range(len(want)):
            near(got[unit, column], want[unit, column], 1e-6 * sizes[unit, column], f"{what}, unit {unit}")


def units():
    shapes = [(64, 768), (33, 130), (1, 5), (70, 1), (5, 200, 7, 7), (3, 20, 3, 2), (2, 3, 50, 50), (40, 3, 9), (300,)]
    for dtype in DTYPES:
        for shape in shapes:
            x = normal(*shape, dtype=dtype)
            agrees_in_units(x.relu(), min(1, len(shape) - 1))
    for axis in range(-3, 3):
        agrees_in_units(normal(6, 5, 4), axis)
    for shape, axis in (((0, 3), 1), ((3, 0), 1), ((3, 0), 0), ((1, 1, 1), 2)):
        agrees_in_units(torch.zeros(shape), axis)
    x = normal(4, 6, 5, 3)
    many = {
        "transposed": x.transpose(0, 2),
        "channels last": x.contiguous(memory_format=torch.channels_last),
        "a window": x[1:-1, :, 1:],
        "expanded": x[:, :1].expand(-1, 6, -1, -1),
        "an offset": x.flatten()[1:].view(359, 1),
        "integers": torch.arange(24).view(4, 6),
        "a parameter": torch.nn.Parameter(x),
    }
    for name, tensor in many.items():
        agrees_in_units(tensor, 1, name)


def units_in_parts():
    """What the programs do where there are more blocks than programs; and several tensors merged."""
    cuda_units._PROGRAMS = 3
    for shape in ((700, 130), (40, 5, 300), (300, 5, 3)):
        agrees_in_units(normal(*shape), 1)
        pieces = normal(*shape).split(shape[0] // 3)
        kept = torch.zeros(shape[1], 4, dtype=torch.float64, device=DEVICE)
        assert all(cuda_units.merge_into(kept, piece.to(DEVICE), 1) for piece in pieces)
        torch.testing.assert_close(kept.cpu(), units_reference.measure(torch.cat(pieces), 1), rtol=1e-6, atol=1e-4)
        again = torch.zeros_like(kept)
        assert all(cuda_units.merge_into(again, piece.to(DEVICE), 1) for piece in pieces)
        assert torch.equal(kept, again)
    kept = torch.zeros(5, 4, dtype=torch.float64, device=DEVICE)
    assert not cuda_units.merge_into(kept, torch.ones(2, 6, device=DEVICE), 1)
    assert not cuda_units.merge_into(kept, torch.ones(5, device=DEVICE), 1)
    assert not cuda_units.merge_into(kept, torch.ones(2, 5, dtype=torch.int32, device=DEVICE), 1)
    assert not kept.any()


def units_that_are_not_finite():
    for shape in ((50, 6), (3, 6, 40), (30, 6, 2)):
        for value in (NAN, INF, -INF, 1e-40, 1e30, 1e-30):
            x = normal(*shape)
            x.view(-1)[[3, x.numel() // 2]] = value
            agrees_in_units(x, 1, f"with {value}")
        mixed = normal(*shape)
        mixed.view(-1)[::5] = INF
        mixed.view(-1)[1::7] = -INF
        agrees_in_units(mixed, 1, "infinities of both signs")
    kept = torch.zeros(2, 4, dtype=torch.float64, device=DEVICE)
    for value in (NAN, 1.0):
        cuda_units.merge_into(kept, torch.tensor([[value, 2.0]], device=DEVICE), 1)
    assert kept[0, :3].isnan().all() and kept[1].tolist() == [4.0, 8.0, 2.0, 0.0]


def views():
    x = normal(100, 300)
    many = {
        "transposed": x.t(),
        "columns": x[:, ::2],
        "a window": x[3:-5, 2:-3],
        "permuted": x.view(5, 20, -1).permute(2, 0, 1),
        "expanded": x[:, :1].expand(-1, 9),
        "channels last": x.view(4, 5, 5, -1).contiguous(memory_format=torch.channels_last),
        "overlapping": x.as_strided((50, 30), (1, 1)),
        "a scalar": x[1, 1],
        "an offset": x.flatten()[1:],
        "negative": torch.complex(x, x).conj().imag,
        "half, odd address": x.half().flatten()[3:],
        "a parameter": torch.nn.Parameter(x),
        "integers": torch.arange(9),
        "nothing stored": torch._efficientzerotensor(5),
    }
    for name, tensor in many.items():
        agrees(tensor, name)
    same(torch.func.vmap(cuda.measure)(x[:2, :50].to(DEVICE))[1], reference.measure(x[1, :50]), "vmap")


def differences():
    """What a tensor is more than another: as if the difference had been made, in float32 at least."""
    cuda._PROGRAMS = 3
    for dtype in DTYPES:
        wide = torch.promote_types(dtype, torch.float32)
        for size in (0, 1, 9, BLOCK, 7 * BLOCK + 5):
            before = normal(size, dtype=dtype)
            for after in (
                before + normal(size, dtype=dtype, seed=1) / 100,
                before.clone(),
                before * torch.tensor(1.01).to(dtype),
            ):
                differs(after, before, reference.measure(after.to(wide) - before))
        odd = normal(50, dtype=dtype)
        odd[3], odd[7] = NAN, INF
        differs(odd, odd.roll(1), reference.measure(odd.to(wide) - odd.roll(1)))
    grid = normal(40, 30)
    for after, before in ((grid.t(), 2 * grid.t()), (grid, grid.t().reshape(40, 30)), (grid[:, 1:9], grid[:, 2:10])):
        differs(after, before, reference.measure(after - before))
    flipped = (normal(30, 40) + 1).t()
    differs(grid, flipped, reference.measure(grid - flipped))
    tensors = [normal(n, dtype=dtype) for n in (5, BLOCK + 1) for dtype in DTYPES]
    out, counts = neutral(len(tensors), DEVICE), Counter()
    with counting(counts):
        places = [9 * i for i in range(len(tensors))]
        assert cuda.measure_many_into(out, places, on(tensors), on([tensor / 2 for tensor in tensors])) == []
    assert counts == {"measure_list": len(DTYPES), "merge_rows": 1}, counts
    for got, tensor in zip(out, tensors, strict=True):
        same(got, reference.measure(tensor.to(torch.promote_types(tensor.dtype, torch.float32)) - tensor / 2), "of a list")
    others = [grid.half(), grid[:2], torch.arange(9), grid.to_sparse()]
    assert cuda.measure_many_into(out, places[:4], on([grid, grid, torch.arange(9), grid]), on(others)) == [0, 1, 2, 3]


def differs(after, before, want):
    out = neutral(1, DEVICE)
    what = f"a difference of {after.dtype} {tuple(after.shape)}"
    for magnitudes, agree in ((True, same), (False, same_without_magnitudes)):
        assert cuda.measure_many_into(out, [0], on([after]), on([before]), magnitudes) == []
        agree(out[0], want, what)


def fuzz():
    pool = [0.0, -0.0, 1e-45, -1e-40, 1.1754944e-38, 3.4e38, 1e4, 1e4 + 0.01, 1.0, -1.0]
    generator = np.random.default_rng(0)
    for round in range(60 if DEVICE != "cpu" else 30):
        few = generator.choice([*pool, NAN, INF] if round % 3 == 0 else pool, 20)
        data = np.concatenate(
            [np.tile(few, generator.integers(1, 200)), few[0] + generator.normal(size=generator.integers(5000))]
        )
        agrees(torch.from_numpy(data).to(DTYPES[round % 4])[:: 1 + round % 3], f"round {round}")


class Counting:
    def __init__(self, kernel, counts):
        self.kernel, self.counts = kernel, counts

    def __getitem__(self, grid):
        self.counts[self.kernel.__name__] += 1
        return self.kernel[grid]


@contextmanager
def counting(counts):
    """Count the launches of each kernel."""
    names = {
        triton_code: ("measure_one", "measure_list"),
        triton_counts: ("count_one", "count_list", "clear_counts"),
        triton_merge: ("merge_rows",),
        triton_pairs: ("compare_list", "merge_products"),
        triton_units: ("measure_columns", "measure_runs", "merge_parts"),
    }
    plain = [(module, name, getattr(module, name)) for module, several in names.items() for name in several]
    for module, name, kernel in plain:
        setattr(module, name, Counting(kernel, counts))
    try:
        yield
    finally:
        for module, name, kernel in plain:
            setattr(module, name, kernel)


def lists():
    tensors = [normal(n, dtype=dtype, seed=n) for n in (0, 1, 999, BLOCK, 3 * BLOCK + 5) for dtype in DTYPES]
    counts = Counter()
    with counting(counts):
        found = cuda.measure_many(on(tensors))
    assert counts == {"measure_list": len(DTYPES), "merge_rows": 1}, counts
    for got, tensor in zip(found, tensors, strict=True):
        same(got, reference.measure(tensor), "of a list")
        torch.testing.assert_close(got, cuda.measure(tensor.to(DEVICE)), rtol=0, atol=0)
    mixed = cuda.measure_many(on([*tensors[5:8], torch.arange(5), torch.ones(3)]))
    assert torch.equal(mixed[3].cpu(), reference.measure(torch.arange(5))) and mixed[4, COUNT] == 3
    assert cuda.measure_many([]).shape == (0, 9)
    assert cuda.measure_many(on([torch.ones(0), torch.ones(0)])).equal(neutral(2, DEVICE))
    out, (eighth, whole, ninth) = neutral(4, DEVICE), on([tensors[8], torch.arange(3), tensors[9]])
    assert cuda.measure_many_into(out, [18, 0, 27], [eighth, whole, ninth]) == [1]
    assert out[:2].equal(neutral(2, DEVICE)) and out[2].equal(cuda.measure(eighth)) and out[3].equal(cuda.measure(ninth))


def comparisons():
    """Sums of products and of squares of pairs of all dtypes, each in one launch, and one that adds up: the same bits again."""
    programs, cuda._PROGRAMS = cuda._PROGRAMS, 7
    sizes = (0, 1, 999, BLOCK, 3 * BLOCK + 5, 17 * BLOCK + 1025)
    news = [normal(n, dtype=dtype, seed=n) for n in sizes for dtype in DTYPES] + [normal(30, 40).t()]
    news += [torch.tensor([1.0, odd] * 600) for odd in (NAN, INF, 1e-42, 3e38)]
    olds = [tensor.clone() / 3 + 1 for tensor in news]
    state, counts = torch.full((3 * len(news) + 5,), -7.0, dtype=torch.float64, device=DEVICE), Counter()
    firsts = 1 + 3 * np.arange(len(news) + 1)[::-1]
    others = torch.ones(3), torch.ones(2, 2)  # of other shapes
    given = on([*news, others[0]]), on([*olds, others[1]])
    with counting(counts) if DEVICE == "cpu" else nullcontext():
        assert on_cuda.compare_many(state, firsts, *given) == [len(news)]
    assert DEVICE != "cpu" or counts == {"compare_list": len(DTYPES), "merge_products": 1}, counts
    again = torch.full_like(state, -7.0)
    on_cuda.compare_many(again, firsts, *given)
    cuda._PROGRAMS = programs
    assert torch.equal(again.view(torch.int64), state.view(torch.int64))
    assert state.cpu()[[0, 1, 2, 3, -1]].tolist() == [-7.0] * 5
    exact = torch.zeros_like(state, device="cpu")
    if DEVICE == "cpu":
        assert kernels.host.compare_many(exact, firsts[:-1], news, olds) == []
    for first, new, old in zip(firsts.tolist(), news, olds, strict=False):
        x, y = new.flatten().double(), old.flatten().double()
        want = [torch.dot(x, y), torch.dot(y, y), torch.dot(x, x)]
        for place, slack in enumerate(((x * y).abs().sum(), want[1], want[2])):
            near(state[first + place].cpu(), want[place], 1e-13 * slack, f"{new.dtype} {tuple(new.shape)}")
            if DEVICE == "cpu":
                near(state[first + place], exact[first + place], 1e-13 * slack, "the compiled kernel")


def table():
    """A table filled as on a device."""
    seen = [normal(n, seed=n) + 2 for n in (30, BLOCK + 1, 5)]
    want = Table(4, [AccumulatorRows(Histogram(), (3,))])
    for tensor in seen:
        want.measuring.add(0, Measurement(tensor))
    want.measuring.put(1, Measurement(seen[2]))
    kernels.on_device = lambda tensor: on_cuda
    got = Table(4, [AccumulatorRows(Histogram(), (3,))])
    fallback = KeepsAll()
    write = got.writer(0, fallback)
    for tensor in (*seen[:2], torch.arange(3)):
        write(tensor)
    fallback.direct = False
    write(seen[0])
    assert [tensor.numel() for _, tensor in fallback.came] == [3, 30] and got.writer(3, fallback)
    fallback.direct = True
    got.measuring.add(0, Measurement(seen[2]))
    same(got.moments[0], want.moments[0], "three calls")
    write(torch.tensor([NAN]))
    assert got.moments[0, [MEAN, M2, MIN, MAX]].isnan().all() and got.moments[0, NONFINITE] == 1
    write(torch.ones(3))
    assert got.moments[0, [MEAN, M2, MIN, MAX]].isnan().all()
    alone = Table(2)
    assert alone.measure_all([1, 0], [seen[2], torch.arange(4)]) == [1]
    same(alone.moments[1], want.moments[1], "a parameter")
    same(merge(neutral(1)[0], cuda.measure(seen[0])), reference.measure(seen[0]), "merged")
    assert got.measure_all([1, 3, 2], [seen[2], seen[0], torch.arange(2)]) == [2]  # which is no float
    same(got.moments[1], want.moments[1], "beside a histogram")
    assert alone.measure_all([1, 0], [seen[0], seen[1]], [seen[0] / 3, seen[0]]) == [1]
    same(alone.moments[1], reference.measure(seen[0] - seen[0] / 3), "an update")


def partial_rows():
    """Those of several calls wait together, and are merged when there is no room for more."""
    cuda._CAPACITY = 6
    seen = [normal(n, dtype=dtype, seed=n) + 2 for n in (30, 3 * BLOCK + 1, 5) for dtype in (torch.float32, torch.bfloat16)]
    state, unsized, counts = neutral(2, DEVICE).flatten(), neutral(2, DEVICE).flatten(), Counter()
    partial = cuda.PartialRows(unsized, magnitudes=False)
    for row, step in ((1, 1), (0, 2)):
        write = partial.writer(9 * row)
        assert all(write(tensor[::step]) for tensor in on(seen))
    partial.merge()
    partial = cuda.PartialRows(state)
    with counting(counts):
        writes = [partial.writer(9 * row) for row in (1, 0)]
        for tensor in on(seen):
            assert writes[0](tensor) and writes[1](tensor[::2])
        whole, sparse, empty, much = on([torch.arange(5), torch.eye(3).to_sparse(), torch.ones(0), normal(7 * BLOCK)])
        assert not writes[0](whole) and not writes[0](sparse) and writes[0](empty)
        assert not writes[0](much)  # more than there is room for
        partial.merge()
        partial.merge()
    assert counts["measure_one"] == 12 and 2 <= counts["merge_rows"] <= 5, counts
    for row, step in ((1, 1), (0, 2)):
        want = neutral(1)[0]
        for tensor in seen:
            want = merge(want, reference.measure(tensor[::step]))
        same(state.view(2, 9)[row], want, "of several calls")
        same_without_magnitudes(unsized.view(2, 9)[row], want, "of several calls")
    writes[0](seen[0].to(DEVICE))
    partial.drop()
    before = state.clone()
    partial.merge()
    assert state.equal(before)


def units_of_a_table():
    """A tensor from a hook whose row keeps units takes three launches, once the first one has determined the axis."""
    if DEVICE == "cpu":
        kernels.on_device = lambda tensor: on_cuda
    modules = (torch.nn.Linear(1, 1), torch.nn.Conv2d(1, 1, 1), torch.nn.Conv2d(1, 1, 1))
    kept = AccumulatorRows(Units(), (0, 1, 2), {row: (module, UnitSpec()) for row, module in enumerate(modules)})
    table = Table(3, [kept], device=DEVICE, magnitudes=False)
    table.expect({"units": {0, 1, 2}})

    class Adds(KeepsAll):
        def __call__(self, row, tensor):
            super().__call__(row, tensor)
            table.measuring.add(row, Measurement(tensor))

    fallback = Adds()
    writes = [table.writer(row, fallback, {"units"}) for row in range(3)]
    seen = [
        [normal(size, 6, seed=size).relu() for size in (40, 1, 7)],
        [normal(size, 5, 9, 9, seed=size).to(torch.bfloat16) for size in (2, 3)],
        [normal(size, 5, 2, 1, seed=size) for size in (2, 3)],
    ]
    for write, tensors in zip(writes, seen, strict=True):
        write(tensors[0].to(DEVICE))
    assert len(fallback.came) == 3
    if DEVICE != "cpu":
        on_cuda.driver_of(0)  # before its first use it is compared with Triton, in a launch that is not counted here
    table.clear()
    counts = Counter()
    with counting(counts):
        for write, tensors in zip(writes, seen, strict=True):
            for tensor in on(tensors):
                write(tensor)
    calls = [len(tensors) for tensors in seen]
    # Short runs are measured as columns.
    assert counts == {
        "measure_one": sum(calls),
        "measure_columns": calls[0] + calls[2],
        "measure_runs": calls[1],
        "merge_parts": sum(calls),
    }, counts
    assert len(fallback.came) == 3
    writes[0](torch.ones(0, 6, device=DEVICE))
    for row, tensors in enumerate(seen):
        want = neutral(1)[0]
        for tensor in tensors:
            want = merge(want, reference.measure(tensor))
        same_without_magnitudes(table.moments[row], want, f"of row {row}")
        whole = torch.cat(tensors)
        sizes = units_reference.measure(whole.abs(), 1)
        wanted = units_reference.measure(whole, 1)
        assert ((table.units[row].cpu() - wanted).abs() <= 1e-6 * sizes).all(), row
    others = on([torch.ones(2, 6, dtype=torch.int32), normal(3, 6).to_sparse()])
    for tensor in others:
        writes[0](tensor)
    assert [tensor is other for (_, tensor), other in zip(fallback.came[3:], others, strict=True)] == [True, True]
    before = table.units[1].clone()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        writes[1](torch.ones(3, 7, device=DEVICE))
    assert "it had 5 units along dimension 1, and now has 7" in str(caught[-1].message)
    assert torch.equal(table.units[1][:, :3], before[:, :3])


def eight():
    """Tensors of one launch have the same bits as with a launch for each, also fewer than eight, and some without elements."""
    sizes = [5, BLOCK, 0, 3 * BLOCK + 1, 1, 7 * BLOCK, 2 * BLOCK, 999]
    for code, dtype in enumerate(DTYPES):
        for many, magnitudes in ((8, False), (3, True), (1, False)):
            tensors = on([normal(size, dtype=dtype, seed=i) * 3 + 1 for i, size in enumerate(sizes[:many])])
            tensors[0][-1] = NAN if magnitudes else INF
            constants = {"CODE": code, "MAGNITUDES": magnitudes, **cuda._BLOCKS}
            spread = [cuda._spans(tensor.numel()) for tensor in tensors]
            ends = np.cumsum([programs for _, programs in spread]).tolist()
            rows = torch.full((2, ends[-1], 9), -1.0, dtype=torch.float64, device=DEVICE)
            for tensor, (steps, programs), end in zip(tensors, spread, ends, strict=True):
                if programs:
                    place = rows[0, end - programs :].data_ptr()
                    triton_code.measure_one[(programs,)](
                        tensor.data_ptr(), tensor.numel(), steps, place, **constants, num_warps=4
                    )
            nothing = [0] * (8 - many)
            numbers = [*(tensor.data_ptr() for tensor in tensors), *nothing, *(tensor.numel() for tensor in tensors), *nothing]
            numbers += [*ends, *(ends[-1] for _ in nothing)][:7]
            launch = triton_code.measure_eight[(ends[-1],)]
            launch(
                *numbers, rows[1].data_ptr(), PROGRAMS=cuda._PROGRAMS, MOST_BLOCKS=cuda._MOST_BLOCKS, **constants, num_warps=4
            )
            bits = rows.view(torch.int64)
            assert bits[0].equal(bits[1]) and rows[0, :, COUNT].sum() == sum(tensor.numel() for tensor in tensors), dtype


def eight_of_several_blocks():
    """A tensor that a launch with others divides into spans of several blocks."""
    limits, cuda._PROGRAMS = cuda._PROGRAMS, 2
    most, cuda._MOST_BLOCKS = cuda._MOST_BLOCKS, 3
    eight()
    cuda._PROGRAMS, cuda._MOST_BLOCKS = limits, most


def other_streams():
    """What waits on one stream is not merged on another, not even where there is no room for more."""
    cuda._CAPACITY = 6
    streams, merged_on = [7], []
    current, launch, merge = cuda.current_stream, cuda._launch, triton_merge.merge_rows

    def noting(kernel, *args, **constants):
        if kernel is merge:
            merged_on.append(streams[-1])
        launch(kernel, *args, **constants)

    cuda.current_stream, cuda._launch = lambda device: streams[-1], noting
    state = neutral(1, DEVICE).flatten()
    partial = cuda.PartialRows(state)
    write = partial.writer(0)
    (part,) = on([normal(5 * BLOCK)])
    assert write(part)
    streams.append(8)
    assert not write(part) and merged_on == []
    streams.append(7)
    assert write(part) and merged_on == [7]
    partial.merge()
    streams.append(8)
    assert write(part)  # nothing waits on another
    cuda.current_stream, cuda._launch = current, launch


def places():
    """Measurements go into the row at a place, and nowhere while there is none."""
    for dtype in DTYPES:
        tensors = on([normal(5000, dtype=dtype), normal(40, 30, dtype=dtype).t(), normal(3, dtype=dtype)])
        state, set_of_one = neutral(3, DEVICE), Places()
        place = set_of_one.add(torch.device(DEVICE), lambda: None)
        for tensor in tensors:
            in_graphs.measure(tensor, place, True)
            assert in_graphs.measure_grad(tensor, place, True).tolist() == [0.0]
        assert torch.equal(state, neutral(3, DEVICE)) and place.tolist() == [0, 0]
        address = state.data_ptr() + 72
        set_of_one.set((address,))
        for tensor in tensors[:2]:
            in_graphs.measure(tensor, place, True)
        in_graphs.measure_grad(tensors[2], place, True)
        assert place.tolist() == [address, 2]
        same(state[1], reference.measure(torch.cat([tensor.cpu().flatten() for tensor in tensors])), f"at a place {dtype}")
        assert state[::2, COUNT].tolist() == [0, 0]
        in_graphs.measure(tensors[0][:0], place, True)
        set_of_one.clear()
        assert place.tolist() == [0, 0]


def step():
    """A step as on a device: one launch for each tensor of a module and for the loss, and one that merges them all; one launch,
    and one that merges, for all parameters and gradients, and the same for all updates. The first step takes the fallback."""
    stats = ["mean", "std", "norm", "min", "max"]
    rules = [
        Watch(params="*", tensors=["param", "grad", "update"], stats=stats),
        Watch(modules="*", select="leaves", tensors=["output", "output_grad"], stats=stats),
    ]
    found, requested = [], set()
    counts = Counter()
    launch = cuda._launch

    def noting(*args, **constants):
        requested.update(value for name, value in constants.items() if name == "MAGNITUDES")
        launch(*args, **constants)

    cuda._launch = noting
    for serves in (None, on_cuda):
        kernels.on_device = lambda tensor, serves=serves: serves
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(70, 80), torch.nn.Linear(80, 3))
        optimizer = torch.optim.AdamW(model.parameters())
        with instrument(model, [StatsMonitor(rules)], optimizer=optimizer) as watched:
            for _ in range(2):
                counts.clear()
                with counting(counts):
                    optimizer.zero_grad()
                    model(normal(4, 70)).square().sum().backward()
                    optimizer.step()
                    found_here = watched.latest
        found.append(found_here)
    cuda._launch = launch
    assert counts == {"measure_one": 5, "measure_list": 2, "merge_rows": 3}, counts
    assert requested == {False}, requested
    assert found[0].keys() == found[1].keys() and "run/loss" in found[0] and len(found[0]) > 60
    for tag, value in found[0].items():
        assert math.isclose(found[1][tag], value, rel_tol=1e-5, abs_tol=1e-9), (tag, found[1][tag], value)


ALL = (
    sizes,
    several_blocks_each,
    magnitudes,
    without_magnitudes,
    offsets,
    odd,
    units,
    units_in_parts,
    units_that_are_not_finite,
    units_of_a_table,
    views,
    differences,
    fuzz,
    lists,
    comparisons,
    table,
    partial_rows,
    other_streams,
    eight,
    eight_of_several_blocks,
    step,
    places,
)
CHECKS = {check.__name__: check for check in ALL}

if __name__ == "__main__":
    run(CHECKS)
