"""The accuracy contract: every scalar agrees with the same formula in float64 to 1e-6, and rows merge associatively."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_hooks.stats.measurement import Measurement
from lightning_hooks.stats.moments import merge, merge_groups, merge_in_host, neutral
from lightning_hooks.stats.statistics import STATISTICS, compute
from tests.stats.definitions import DEFINITIONS

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
DATA = {
    "normal": lambda: torch.randn(3001, dtype=torch.float64),
    "centred, many": lambda: torch.randn(1_500_000, dtype=torch.float64),
    "offset": lambda: 1e4 + 1e-2 * torch.randn(5000, dtype=torch.float64),
    "tiny": lambda: 1e-25 * torch.randn(999, dtype=torch.float64),
    "huge": lambda: 1e20 * torch.randn(999, dtype=torch.float64),
    "subnormal": lambda: torch.randn(500, dtype=torch.float64) * 1e-40,
    "mostly zeros": lambda: torch.randn(4000, dtype=torch.float64).relu() * (torch.rand(4000) > 0.7),
    "one": lambda: torch.tensor([-2.5], dtype=torch.float64),
    "zeros": lambda: torch.zeros(17, dtype=torch.float64),
    "transposed": lambda: torch.randn(30, 40, dtype=torch.float64).t(),
    "expanded": lambda: torch.randn(1, 7, dtype=torch.float64).expand(9, 7),
}


def holds(dtype, data):
    torch.manual_seed(0)
    return bool(torch.isfinite(DATA[data]().to(dtype)).all())


@pytest.mark.parametrize(("data", "dtype"), [(data, dtype) for data in DATA for dtype in DTYPES if holds(dtype, data)], ids=str)
def test_every_scalar_agrees_with_float64(data, dtype):
    torch.manual_seed(0)
    tensor = DATA[data]().to(dtype)
    row = Measurement(tensor).moments.numpy()[None]
    exact = tensor.double().numpy()
    for stat, definition in DEFINITIONS.items():
        if stat == "underflow_fraction":  # counted in the dtype of the tensor, not in float64
            continue
        got, want = compute(stat, row)[0], definition(exact)
        slack = 1e-6 * (np.abs(exact).mean() if stat == "mean" else abs(want))
        assert abs(got - want) <= slack, (stat, got, want)
    tiny = torch.finfo(dtype).tiny
    assert compute("underflow_fraction", row)[0] == ((np.abs(exact) < tiny) & (exact != 0)).mean()


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (
            [1.0, np.nan],
            dict.fromkeys(["mean", "std", "norm", "rms", "min", "max", "abs_max", "abs_mean"], np.nan) | {"nonfinite": 1},
        ),
        ([1.0, np.inf], {"mean": np.inf, "std": np.nan, "norm": np.inf, "min": 1.0, "max": np.inf, "nonfinite": 1}),
        ([1.0, -np.inf], {"mean": -np.inf, "norm": np.inf, "min": -np.inf, "max": 1.0, "abs_max": np.inf, "nonfinite": 1}),
        ([np.inf, -np.inf], {"mean": np.nan, "std": np.nan, "norm": np.inf, "abs_max": np.inf, "nonfinite": 2}),
    ],
)
def test_what_is_not_finite_follows_ieee(values, expected):
    row = Measurement(torch.tensor(values)).moments.numpy()[None]
    np.testing.assert_equal({stat: compute(stat, row)[0] for stat in expected}, expected)


numbers = st.floats(width=32, allow_nan=True, allow_infinity=True) | st.floats(-1, 1).map(lambda x: 1e4 + x / 100)
chunks = st.lists(numbers, max_size=6)


def moments_of(values):
    return Measurement(torch.tensor(values, dtype=torch.float64)).moments


@settings(deadline=None, max_examples=200)
@given(chunks, chunks, chunks)
def test_merging_is_associative_and_equals_measuring_all_at_once(a, b, c):
    rows = [moments_of(x) for x in (a, b, c)]
    left, right = merge(merge(rows[0], rows[1]), rows[2]), merge(rows[0], merge(rows[1], rows[2]))
    whole = moments_of([*a, *b, *c])
    scale = float(torch.tensor([1.0, *[abs(v) for v in (*a, *b, *c) if np.isfinite(v)]]).double().max())
    for got in (left, right, merge_groups(torch.stack(rows))):
        torch.testing.assert_close(got, whole, rtol=1e-9, atol=1e-9 * scale**2, equal_nan=True)
    torch.testing.assert_close(merge(rows[1], rows[0]), merge(rows[0], rows[1]), equal_nan=True)


@given(chunks)
@settings(deadline=None)
def test_merging_with_nothing_changes_nothing(a):
    row = moments_of(a)
    torch.testing.assert_close(merge(row, neutral(1)[0]), row, rtol=0, atol=0, equal_nan=True)


def test_no_elements_read_as_not_measured():
    row = moments_of([]).numpy()[None]
    assert all(np.isnan(compute(stat, row)[0]) for stat in STATISTICS)


@pytest.mark.parametrize("rows", [1, 2, 15, 16, 17, 33, 64, 65, 300])
@pytest.mark.parametrize("special", [None, np.inf, np.nan])
def test_a_merge_in_host_memory_has_the_bits_of_torch(rows, special):
    rng = np.random.default_rng(rows)
    moments = rng.standard_normal((rows, 9)) * 10.0 ** rng.uniform(-8, 8, (rows, 9))
    moments[:, 0] = rng.integers(1, 1000, rows)
    moments[rows // 2] = neutral(1)[0].numpy()
    moments[0, 4] = -0.0
    if special is not None:
        moments[-1, 1:6] = special
    before = moments.tobytes()
    assert merge_in_host(moments).tobytes() == merge_groups(torch.from_numpy(moments.copy())).numpy().tobytes()
    assert moments.tobytes() == before
