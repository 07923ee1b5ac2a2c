"""Rows of a table that lies on a device, filled for many tensors at once; played with a kernel on the CPU."""

import pytest
import torch

from lightning_hooks.stats import device_rows, host_copy, kernels
from lightning_hooks.stats.histogram import BUCKETS
from lightning_hooks.stats.measurement import Measurement
from lightning_hooks.stats.moments import MOMENTS, neutral
from lightning_hooks.stats.table import Table
from tests.stats._detour import Detour

needs_device = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")


class Kernel:
    """Notes how often it is called; leaves whole numbers alone, as the kernels do."""

    def __init__(self):
        self.calls = []

    def measure_many_into(self, out, places, tensors, before=None, *, merging=False):
        self.calls.append(len(tensors))
        assert not merging or before is None
        less = before or [torch.zeros_like(tensor) for tensor in tensors]
        for place, tensor, other in zip(places, tensors, less, strict=True):
            if tensor.is_floating_point():
                out[place : place + MOMENTS] = Measurement(tensor - other).moments
        return [position for position, tensor in enumerate(tensors) if not tensor.is_floating_point()]


@pytest.fixture
def kernel(monkeypatch):
    kernel = Kernel()
    monkeypatch.setattr(kernels, "on_device", lambda tensor: kernel)
    return kernel


def test_rows_with_more_than_moments_are_left_and_the_others_go_in_one_call(kernel):
    table = Table(4, histogram_rows=(1,))
    tensors = [torch.ones(5), torch.ones(6), torch.arange(7), torch.ones(8)]
    assert table.measure_all([3, 1, 2, 0], tensors) == [1, 2]
    assert kernel.calls == [3] and table.moments[:, 0].tolist() == [8.0, 0.0, 0.0, 5.0]


def test_differences_go_in_one_call(kernel):
    table = Table(2)
    after, before = [torch.full((3,), 5.0), torch.ones(2)], [torch.ones(3), torch.ones(2)]
    assert table.measure_all([1, 0], after, before) == []
    assert kernel.calls == [2] and table.moments[:, 1].tolist() == [0.0, 4.0]


def test_a_writer_hands_on_what_is_not_written_and_what_fails(kernel):
    table, detour = Table(2), Detour()
    write = table.writer(1, detour)
    write(torch.ones(4))
    write(torch.arange(3))
    detour.direct = False
    write(torch.ones(5))
    detour.direct = True
    kernel.measure_many_into = None  # calling it is an error
    write(torch.ones(6))
    assert table.moments[1, 0] == 4.0 and [(row, tensor.numel()) for row, tensor in detour.came] == [(1, 3), (1, 5), (1, 6)]


def test_measurements_are_put_in_one_write_for_moments_and_one_for_histograms():
    moments, histograms = neutral(5), torch.zeros(2, BUCKETS, dtype=torch.float64)
    looks = [Measurement(torch.full((n,), 2.0)) for n in (3, 4, 5, 9, 6)]
    assert device_rows.put(moments, histograms, {1: 0, 4: 1}, {3}, [4, 0, 2, 3, 1], looks) == [3]
    assert moments[:, 0].tolist() == [4.0, 6.0, 5.0, 0.0, 3.0]
    assert torch.equal(histograms, torch.stack([looks[4].histogram, looks[0].histogram]).double())


def test_numbers_go_to_a_device():
    assert host_copy.to_device([3, 1], torch.device("cpu")).tolist() == [3, 1]


def test_what_is_here_is_not_copied():
    tensor = torch.ones(3)
    copy = host_copy.begin_copy(tensor)
    assert copy.here and copy.wait().ctypes.data == tensor.data_ptr()


@needs_device
def test_a_copy_from_a_device_is_what_was_there_when_it_was_asked_for():
    tensor = torch.arange(100_000, device="cuda", dtype=torch.float64)
    torch.cuda.set_sync_debug_mode("error")
    try:
        copy = host_copy.begin_copy(tensor)
        tensor.zero_()
        index = host_copy.to_device([5, 6], tensor.device)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert not copy.here and copy.wait().tolist() == list(range(100_000))
    assert index.tolist() == [5, 6]
