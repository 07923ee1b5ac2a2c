"""The kernel in plain torch, against the same numbers from NumPy in float64: all data, dtypes and sizes."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from lightning_hooks.stats.kernels import reference
from lightning_hooks.stats.moments import neutral
from tests.stats.kernels.agreement import DTYPES, is_near, normal

KINDS = {
    "of both signs": lambda x: x,
    "not negative": lambda x: x.relu(),
    "positive": lambda x: x.exp(),
    "negative": lambda x: -x.exp(),
    "offset": lambda x: 1e4 + 1e-2 * x,
    "zeros": lambda x: x * 0,
    "negative zeros": lambda x: -(x * 0).abs(),
    "equal": lambda x: x * 0 + 3.5,
    "too large to square": lambda x: x * 1e30,
    "too small to square": lambda x: x * 1e-30,
    "with an infinity": lambda x: torch.cat([x[:-1], torch.tensor([float("inf")])]),
    "with a negative infinity": lambda x: torch.cat([x[:-1], torch.tensor([-float("inf")])]),
    "with a NaN": lambda x: torch.cat([x[:-1], torch.tensor([float("nan")])]),
    "with subnormals": lambda x: torch.cat([x[:-2], torch.tensor([1e-40, -1e-40])]),
    "subnormals and zeros": lambda x: torch.where(x > 1, 1e-40, 0.0),
    "every kind of special number": lambda x: torch.cat([x[:-3], torch.tensor([0.0, 1e-40, float("nan")])]),
}


def by_hand(tensor):
    """The moments of a tensor in NumPy."""
    values, tiny = tensor.detach().double().numpy().ravel(), torch.finfo(tensor.dtype).tiny
    magnitudes = np.abs(values)
    with np.errstate(all="ignore"):
        mean = values.sum() / values.size
        sums = [values.size, mean, np.square(values - mean).sum(), magnitudes.sum(), values.min(), values.max()]
    zeros = (values == 0).sum()
    return torch.tensor([*sums, zeros, (~np.isfinite(values)).sum(), (magnitudes < tiny).sum() - zeros], dtype=torch.float64)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_of_one_piece_and_of_several(kind, dtype):
    for size in (3, 600, 1 << 17, (1 << 17) + 1, 300_001):
        tensor = KINDS[kind](normal(size)).to(dtype)
        is_near(reference.measure(tensor), by_hand(tensor))


def test_numbers_without_a_smallest_normal_one_and_none():
    assert reference.measure(torch.tensor([0, 3, -1])).tolist() == [3, 2 / 3, pytest.approx(26 / 3), 4, -1, 3, 1, 0, 0]
    assert torch.equal(reference.measure(torch.empty(0)), neutral(1)[0])
    assert reference.measure_many([]).shape == (0, 9)


MEASURE = """
import time, torch
from lightning_hooks.stats.kernels import reference
torch.set_num_threads(1)
tensor = torch.randn(1 << 17)
reference.measure(tensor)
alone, all_threads = time.thread_time(), time.process_time()
for _ in range(20):
    reference.measure(tensor)
alone, all_threads = time.thread_time() - alone, time.process_time() - all_threads
print(all_threads / alone)
"""


def test_no_thread_works_beside_the_one_that_measures():
    """The threads of a BLAS of its own would spin after each product, and torch's threads wait for the cores."""
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    done = subprocess.run([sys.executable, "-c", MEASURE], env=environment, capture_output=True, text=True, check=True)
    assert float(done.stdout) < 1.5
