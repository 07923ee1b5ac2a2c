"""The trail of measurements: the compiled one and the one in Python do the same, and writers note what they write."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from lightning_hooks.stats import kernels
from lightning_hooks.stats.kernels import numpy_kernel, trail
from lightning_hooks.stats.measurement import Measurement
from lightning_hooks.stats.moments import MOMENTS
from lightning_hooks.stats.schema import TRAIL_ENTRY
from lightning_hooks.stats.sharing import share
from lightning_hooks.stats.table import Table

CLASSES = [trail.Trail, *([kernels.host.Trail] if kernels.host is not numpy_kernel else [])]


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__module__)
def test_the_last_entries_are_kept_in_order(kind):
    noted = kind(3)
    for row in range(5):
        noted.note(row, -row, math.nan if row == 4 else 2.0 * row, 7 if row in (0, 4) else 0)
    assert (noted.count, noted.bad) == (5, 2)
    entries = np.frombuffer(noted.entries(0), TRAIL_ENTRY)
    assert entries["row"].tolist() == [2, 3, 4] and entries["minimum"].tolist() == [-2, -3, -4]
    assert entries["maximum"][:2].tolist() == [4, 6] and math.isnan(entries["maximum"][2])
    assert entries["nonfinite"].tolist() == [0, 0, 7]
    assert np.frombuffer(noted.entries(4), TRAIL_ENTRY)["row"].tolist() == [4] and noted.entries(5) == b""
    with pytest.raises(ValueError, match="a trail keeps at least one entry, not 0"):
        kind(0)


class Fallback(kernels.FallbackWriter):
    def __init__(self, table):
        self.table = table
        self.direct = True

    def __call__(self, row, tensor):
        self.table.add(row, Measurement(tensor))


def test_writers_note_what_they_write_in_the_order_of_the_calls():
    table, other = Table(2), Table(1)
    fallback, beside = Fallback(table), Fallback(other)
    fallback.trail = kernels.Trail(10)
    writes = [table.writer(row, fallback) for row in range(2)]
    shared = share([writes[1], other.writer(0, beside)], [lambda measurement: None] * 2)
    writes[0](torch.tensor([1.0, -3.0]))
    shared(torch.tensor([2.0, math.inf]))
    writes[0](torch.tensor([4.0]))
    entries = np.frombuffer(fallback.trail.entries(0), TRAIL_ENTRY).tolist()
    assert entries == [(0, -3, 1, 0), (1, 2, math.inf, 1), (0, 4, 4, 0)]
    assert beside.trail is None and other.moments[0, 0] == 2
    assert fallback.trail.bad == 1


def test_a_writer_of_units_notes_the_whole_tensor():
    table = SimpleNamespace(state=torch.zeros(MOMENTS, dtype=torch.float64), units=[torch.zeros(3, 4, dtype=torch.float64)])
    table.magnitudes = True
    fallback = Fallback(None)
    fallback.trail = kernels.Trail(10)
    kernels.host.writer(table, 0, None, fallback, -1)(torch.tensor([[1.0, 2.0, 3.0], [-4.0, 5.0, 6.0]]))
    assert np.frombuffer(fallback.trail.entries(0), TRAIL_ENTRY).tolist() == [(0, -4, 6, 0)]
    assert table.units[0][:, 0].tolist() == [-3, 7, 9]
