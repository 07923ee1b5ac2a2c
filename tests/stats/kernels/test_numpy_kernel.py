"""The kernel in NumPy: correct for all data, dtypes and sizes, for single tensors and for lists."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_hooks.stats import kernels
from lightning_hooks.stats.histogram import BUCKETS, histogram
from lightning_hooks.stats.kernels import numpy_kernel, reference
from lightning_hooks.stats.moments import MOMENTS
from lightning_hooks.stats.table import Table
from tests.stats._fallback import KeepsAll
from tests.stats.kernels.agreement import DTYPES, NOT_OURS, is_near, normal, numbers

KINDS = {
    "of both signs": lambda x: x,
    "not negative": lambda x: x.relu(),
    "positive": lambda x: x.exp(),
    "negative": lambda x: -x.exp(),
    "not positive": lambda x: -x.relu(),
    "offset": lambda x: 1e4 + 1e-2 * x,
    "zeros": lambda x: x * 0,
    "negative zeros": lambda x: -(x * 0).abs(),
    "equal": lambda x: x * 0 + 3.5,
    "too large to square": lambda x: x * 1e30,
    "too small to square": lambda x: x * 1e-30,
    "with an infinity": lambda x: torch.cat([x[:-1], torch.tensor([float("inf")])]),
    "with a negative infinity": lambda x: torch.cat([x[:-1], torch.tensor([-float("inf")])]),
    "with a NaN": lambda x: torch.cat([x[:-1], torch.tensor([float("nan")])]),
    "with a negative NaN": lambda x: torch.cat([x[:-1], -torch.tensor([float("nan")])]),
    "with subnormals": lambda x: torch.cat([x[:-2], torch.tensor([1e-40, -1e-40])]),
    "subnormals and zeros": lambda x: torch.where(x > 1, 1e-40, 0.0),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [3, 600, 65_536, 65_537, 300_001])
def test_of_one_piece_and_of_several(size, kind):
    tensor = KINDS[kind](normal(size))
    is_near(numbers(numpy_kernel.read(tensor)), reference.measure(tensor))


def put(tensors, *more):
    state = torch.zeros(MOMENTS * len(tensors), dtype=torch.float64)
    left = numpy_kernel.measure_many_into(state, MOMENTS * np.arange(len(tensors)), tensors, *more)
    return state.view(-1, MOMENTS), left


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (7,), (512,), (513,), (30, 40)], ids=str)
def test_of_many_each_is_measured(shape, dtype):
    data = [make(normal(*shape).flatten()) if shape else normal(1) for make in KINDS.values() for _ in range(2)]
    tensors = [each[: torch.Size(shape).numel()].reshape(shape).to(dtype) for each in data if each.numel()]
    rows, left = put(tensors, None, None)
    assert left == []
    for row, tensor in zip(rows, tensors, strict=True):
        is_near(row, reference.measure(tensor))


def test_of_many_those_that_are_not_measured_are_named():
    tensors = [torch.ones(2), torch.ones(2, dtype=torch.int32), torch.eye(2).to_sparse(), torch.ones(0), torch.ones(2)]
    for more in (0, 8):
        rows, left = put([*tensors, *[torch.ones(2)] * more], None, None)
        assert left == [1, 2]
        assert rows[:, 0].tolist() == [2.0, 0.0, 0.0, 0.0, 2.0] + more * [2.0]
    assert put([torch.ones(2), torch.ones(3)], [torch.ones(2), torch.ones(2)], None)[1] == [1]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [1, 100, 70_000])
def test_differences_are_those_of_float32_at_least(size, dtype):
    before = [normal(size, dtype=dtype, seed=seed) for seed in range(3)]
    after = [each + each.roll(1) * 0.01 for each in before]
    rows, left = put(after, before, None)
    assert left == []
    for row, new, old in zip(rows, after, before, strict=True):
        is_near(row, reference.measure(new.to(torch.promote_types(dtype, torch.float32)) - old))


def test_histograms_of_many():
    tensors = [torch.randn(50), torch.randn(50)]
    state = torch.ones(2 * MOMENTS + BUCKETS, dtype=torch.float64)
    places = np.array([0, MOMENTS]), np.array([kernels.NO_HISTOGRAM, 2 * MOMENTS])
    assert numpy_kernel.measure_many_into(state, places[0], tensors, None, places[1]) == []
    assert torch.equal(state[2 * MOMENTS :], histogram(tensors[1]))
    is_near(state[MOMENTS : 2 * MOMENTS], reference.measure(tensors[1]))


def test_what_is_left_to_the_reference():
    left = []
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    for tensor in (*NOT_OURS, nested):
        assert numpy_kernel.read(tensor) is None and numpy_kernel.read_histogram(tensor) is None
        assert numpy_kernel.read_many([tensor, torch.ones(2)])[0] is None
    torch.vmap(lambda x: left.append(numpy_kernel.read(x)) or x)(torch.ones(2, 3))
    assert left == [None]
    assert numpy_kernel.read(torch.nn.Parameter(torch.ones(3))) == numpy_kernel.read(torch.ones(3))
    assert numpy_kernel.read(torch.ones(3, requires_grad=True) * 1) == numpy_kernel.read(torch.ones(3))
    assert numpy_kernel.read_many([]) == []


@settings(deadline=None, max_examples=200, derandomize=True)
@given(
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=6),
    repeats=st.integers(1, 20),
    offset=st.sampled_from([0.0, 1.0, 1e4, float("inf"), float("nan")]),
)
def test_rows_merge_in_any_order(sizes, repeats, offset):
    parts = [normal(size * repeats, dtype=torch.float64, seed=size) + offset for size in sizes]
    table = Table(1)
    write = numpy_kernel.writer(table, 0, None, KeepsAll())
    for part in parts:
        write(part)
    is_near(table.moments[0], reference.measure(torch.cat(parts)))


MEASURE = """
import time, torch
from lightning_hooks.stats.kernels import numpy_kernel
torch.set_num_threads(1)
tensor = torch.randn(1 << 17)
numpy_kernel.read(tensor)
alone, all_threads = time.thread_time(), time.process_time()
for _ in range(20):
    numpy_kernel.read(tensor)
alone, all_threads = time.thread_time() - alone, time.process_time() - all_threads
print(all_threads / alone)
"""


def test_no_thread_works_beside_the_one_that_measures():
    """The threads of NumPy's BLAS spin after each product, and torch's threads wait for the cores."""
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    done = subprocess.run([sys.executable, "-c", MEASURE], env=environment, capture_output=True, text=True, check=True)
    assert float(done.stdout) < 1.5
