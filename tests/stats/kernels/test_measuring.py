"""The kernels of this machine compared with float64: dtypes, strides, sizes, magnitudes, values that are not finite."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_hooks.stats import kernels
from lightning_hooks.stats.schema import UNDERFLOW
from tests.stats.kernels.agreement import DTYPES, agrees, normal

BLOCK = 8192  # of the compiled kernel; its chunks are two blocks


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "size",
    [
        *range(0, 70),
        127,
        128,
        129,
        511,
        512,
        513,
        *(k * BLOCK + d for k in (1, 2, 4, 5) for d in (-17, -1, 0, 1, 16, 33)),
        300_001,
    ],
)
def test_sizes_around_the_edges_of_vectors_blocks_and_chunks(size, dtype):
    agrees(normal(size, dtype=dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("magnitude", [1e-38, 1e-30, 1e-25, 1e-12, 1.0, 1e12, 1e20, 1e30, 1e37, 3e38])
def test_magnitudes(magnitude, dtype):
    data = torch.linspace(-1, 1, 5001, dtype=torch.float64) * magnitude
    for tensor in (data.to(dtype), data.abs().to(dtype), data[:7].to(dtype), data.flip(0).sin().to(dtype)):
        agrees(tensor)


@pytest.mark.parametrize("magnitude", [1e-320, 1e-300, 1e-160, 1e160, 1e300])
def test_the_ends_of_float64(magnitude):
    agrees(torch.linspace(-1, 1, 5001, dtype=torch.float64) * magnitude)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("mean", "spread"), [(1e4, 1e-2), (-1e4, 1e-2), (1e4, 10.0), (1.0, 1e-6), (3.0, 0.0)])
def test_offset_data(mean, spread, dtype):
    agrees((mean + spread * normal(50_001, dtype=torch.float64)).to(dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_data_whose_roundings_all_go_one_way(dtype):
    for value in (1.1, 3e16, 0.7):
        for busy in (1, 100, 512, 4000):
            tensor = torch.zeros(2 * BLOCK, dtype=torch.float64)
            tensor[:busy] = value
            agrees(tensor.to(dtype))
            agrees(tensor.flip(0).to(dtype))
            agrees((tensor - value / 3).to(dtype))


def test_data_sorted_so_that_the_first_elements_mislead():
    agrees(normal(100_000).sort().values)
    agrees(torch.cat([torch.zeros(2048), torch.full((2048,), 1e4), 1e4 + 1e-2 * normal(9999)]))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [6, 40, 5000, 20_000])
@pytest.mark.parametrize(
    "odd",
    [
        [float("nan")],
        [float("inf")],
        [-float("inf")],
        [float("inf"), -float("inf")],
        [float("nan"), float("inf"), -float("inf")],
        [-0.0, 0.0],
        [0.0],
    ],
    ids=str,
)
def test_what_is_not_finite_and_zeros_of_either_sign(odd, size, dtype):
    for place in (0, size // 2, size - len(odd)):
        tensor = normal(size, dtype=dtype)
        tensor[place : place + len(odd)] = torch.tensor(odd, dtype=dtype)
        agrees(tensor)
    agrees(torch.tensor(odd * size, dtype=dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_subnormals_are_counted_and_are_no_zeros(dtype):
    tiny = torch.finfo(dtype).tiny
    step = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    mixed = normal(9000, dtype=dtype)
    mixed[::3] = tiny / 2
    mixed[1::7] = 0.0
    mixed[2::11] = -step
    moments = agrees(mixed)
    assert moments[UNDERFLOW] == ((mixed != 0) & (mixed.double().abs() < tiny)).sum()
    agrees(torch.full((5000,), step, dtype=dtype))
    agrees(torch.tensor([tiny, -tiny, tiny / 2, 0.0] * 50, dtype=dtype))


def test_every_16_bit_pattern():
    for dtype in (torch.float16, torch.bfloat16):
        bits = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(dtype)
        agrees(bits)
        agrees(bits[torch.isfinite(bits)])


VIEWS = {
    "transposed": lambda x: x.t(),
    "every second column": lambda x: x[:, ::2],
    "every third row": lambda x: x[::3],
    "a window": lambda x: x[3:-5, 2:-3],
    "one column": lambda x: x[:, 4],
    "permuted": lambda x: x.view(5, 20, -1).permute(2, 0, 1),
    "a window of the permuted": lambda x: x.view(5, 20, -1).permute(2, 0, 1)[1:-1, ::2],
    "expanded": lambda x: x[:, :1].expand(-1, 9),
    "expanded in front": lambda x: x[:3].expand(4, 3, -1),
    "one number expanded": lambda x: x[0, 0].expand(3, 5, 7),
    "channels last": lambda x: x.view(4, 5, 5, -1).contiguous(memory_format=torch.channels_last),
    "overlapping": lambda x: x.as_strided((50, 30), (1, 1)),
    "windows": lambda x: x.flatten().unfold(0, 10, 3),
    "a scalar": lambda x: x[1, 1],
    "empty": lambda x: x[:0],
    "an offset": lambda x: x.flatten()[1:],
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("columns", [9, 100, 301])
@pytest.mark.parametrize("view", VIEWS)
def test_strides(view, columns, dtype):
    agrees(VIEWS[view](normal(100, columns, dtype=dtype)))


pieces = st.one_of(
    st.floats(width=32),
    st.sampled_from([0.0, -0.0, 1e-45, -1e-40, 1.1754944e-38, 3.4e38, float("inf"), float("nan"), 1e4, 1e4 + 0.01]),
)


@settings(deadline=None, max_examples=300, derandomize=True)
@given(
    values=st.lists(pieces, min_size=1, max_size=40),
    repeats=st.integers(1, 300),
    scale=st.sampled_from([0.0, 1e-30, 1.0, 1e4]),
    dtype=st.sampled_from(DTYPES),
    stride=st.integers(1, 3),
)
def test_fuzz(values, repeats, scale, dtype, stride):
    data = torch.tensor(values, dtype=torch.float64).repeat(repeats)
    data = torch.cat([data, scale * normal(17 * repeats, dtype=torch.float64, seed=repeats)])
    agrees(data.to(dtype)[::stride])


@pytest.mark.parametrize("bad", [None, torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("dtype", [*DTYPES, torch.int64, torch.complex64], ids=str)
def test_whether_all_elements_of_tensors_are_finite(bad, dtype):
    last = torch.ones(33, dtype=dtype)
    tensors = [torch.ones(3), torch.nn.Parameter(torch.zeros(2, 5)), torch.empty(0), last]
    if bad is not None:
        where = tensors[0] if dtype is torch.int64 else last
        where[2] = complex(0, bad) if dtype.is_complex else bad
    assert kernels.are_finite(tensors) == (bad is None)
