"""The trail of measurements: the compiled one and the one in Python do the same, and writers note what they write."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from lightning_hooks.stats import kernels
from lightning_hooks.stats.kernels import trail
from lightning_hooks.stats.measurement import Measurement
from lightning_hooks.stats.moments import MOMENTS
from lightning_hooks.stats.schema import TRAIL_ENTRY
from lightning_hooks.stats.table import Table
from tests.stats.kernels.agreement import DTYPES, SETS, _native, native

needs_native = pytest.mark.skipif(kernels.host is kernels.no_kernel, reason="no tensor is written directly")
CLASSES = [trail.Trail, *([] if kernels.Trail is trail.Trail else [kernels.Trail])]


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__module__)
def test_the_last_entries_are_kept_in_order(kind):
    noted = kind(3)
    for row in range(5):
        noted.note(row, -row, math.nan if row == 4 else 2.0 * row, 7 if row in (0, 4) else 0, row / 4)
    assert (noted.count, noted.bad) == (5, 2)
    entries = np.frombuffer(noted.entries(0), TRAIL_ENTRY)
    assert entries["row"].tolist() == [2, 3, 4] and entries["minimum"].tolist() == [-2, -3, -4]
    assert entries["maximum"][:2].tolist() == [4, 6] and math.isnan(entries["maximum"][2])
    assert entries["nonfinite"].tolist() == [0, 0, 7] and entries["abs_min"].tolist() == [0.5, 0.75, 1]
    assert np.frombuffer(noted.entries(4), TRAIL_ENTRY)["row"].tolist() == [4] and noted.entries(5) == b""
    with pytest.raises(ValueError, match="a trail keeps at least one entry, not 0"):
        kind(0)


class Fallback(kernels.FallbackWriter):
    def __init__(self, table):
        self.table = table
        self.direct = True

    def __call__(self, row, tensor):
        self.table.measuring.add(row, Measurement(tensor))


@needs_native
def test_writers_note_what_they_write_in_the_order_of_the_calls():
    table, other = Table(2), Table(1)
    fallback, beside = Fallback(table), Fallback(other)
    fallback.trail = kernels.Trail(10)
    writes = [table.writer(row, fallback) for row in range(2)]
    writes[0](torch.tensor([1.0, -3.0]))
    writes[1](torch.tensor([2.0, math.inf]))
    other.writer(0, beside)(torch.tensor([2.0]))
    writes[0](torch.tensor([4.0]))
    entries = np.frombuffer(fallback.trail.entries(0), TRAIL_ENTRY).tolist()
    assert entries == [(0, -3, 1, 0, 1), (1, 2, math.inf, 1, 2), (0, 4, 4, 0, 4)]
    assert beside.trail is None and other.moments[0, 0] == 1
    assert fallback.trail.bad == 1


@needs_native
def test_a_writer_of_units_notes_the_whole_tensor():
    table = SimpleNamespace(state=torch.zeros(MOMENTS, dtype=torch.float64), units=[torch.zeros(3, 4, dtype=torch.float64)])
    table.magnitudes = True
    fallback = Fallback(None)
    fallback.trail = kernels.Trail(10)
    native.writer(table, 0, None, fallback, -1)(torch.tensor([[1.0, 2.0, 3.0], [-4.0, 5.0, 6.0]]))
    assert np.frombuffer(fallback.trail.entries(0), TRAIL_ENTRY).tolist() == [(0, -4, 6, 0, 1)]
    assert table.units[0][:, 0].tolist() == [-3, 7, 9]


VALUES = {
    "numbers": [3.0, -0.75, 2.0],
    "a zero": [3.0, -0.75, 0.0],
    "many zeros": [0.0, 0.0, -1.0],
    "a subnormal of float32": [1.0, -1e-40, 3.0],
    "a subnormal of float16": [1.0, -1e-6, 3.0],
    "small numbers": [1e-30, -2e-30, 1e-25],
    "large numbers": [3e4, -6e4, 5e4],
    "an infinity": [2.0, math.inf, -1.5],
    "a NaN": [2.0, math.nan, -1.5],
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_every_kernel_notes_the_smallest_magnitude(values, dtype):
    for size in (3, 64, 1001, 20_000):
        tensor = torch.full((size,), 5.0, dtype=dtype)
        tensor[-3:] = torch.tensor(values, dtype=torch.float64).to(dtype)
        tensors = [tensor, tensor.flip(0), torch.tensor(values, dtype=torch.float64).to(dtype).repeat(size // 3)]
        for each in tensors:
            wanted = each.double().abs().amin().item()
            for instructions in SETS:
                _native.choose_instructions(instructions)
                assert noted_abs_min(native, each) == pytest.approx(wanted, abs=0, rel=0, nan_ok=True), (instructions, size)
            assert Measurement(each).abs_min == pytest.approx(wanted, abs=0, rel=0, nan_ok=True)
    if SETS:
        _native.choose_instructions(SETS[0])


def noted_abs_min(kernel, tensor):
    fallback = kernel.FallbackWriter()
    fallback.direct, fallback.trail = True, kernel.Trail(2)
    table = SimpleNamespace(state=Table(1).state, units=[], magnitudes=False)
    kernel.writer(table, 0, None, fallback)(tensor)
    return np.frombuffer(fallback.trail.entries(0), TRAIL_ENTRY)["abs_min"][0]


def test_the_smallest_magnitude_of_a_sparse_tensor_and_of_none():
    assert Measurement(torch.eye(3).to_sparse()).abs_min == 0.0
    assert Measurement(torch.empty(0)).abs_min == math.inf
