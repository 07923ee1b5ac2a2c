"""Copies into host memory, and what several ranks request."""

import pytest
import torch

from lightning_hooks.stats import host_copy
from lightning_hooks.stats.table import Table

needs_device = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")


def test_numbers_go_to_a_device():
    assert host_copy.to_device([3, 1], torch.device("cpu")).tolist() == [3, 1]


def test_what_is_here_is_not_copied():
    tensor = torch.ones(3)
    copy = host_copy.begin_copy(tensor)
    assert copy.ready and copy.wait().ctypes.data == tensor.data_ptr()


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
    assert not copy.ready and copy.wait().tolist() == list(range(100_000))
    assert index.tolist() == [5, 6]


def test_requests_of_a_single_rank_come_back():
    pending = Table(1).exchange(stop=True, factor=4)
    assert pending.ready and pending.merged.stop and pending.merged.factor == 4
    assert not Table(1).exchange().merged.stop
