"""Copies into host memory, and the requests of several ranks."""

import torch

from lightning_hooks.stats import host_copy
from lightning_hooks.stats.table import Table


def test_numbers_go_to_a_device():
    assert host_copy.to_device([3, 1], torch.device("cpu")).tolist() == [3, 1]


def test_what_is_here_is_not_copied():
    tensor = torch.ones(3)
    copy = host_copy.begin_copy(tensor)
    assert copy.ready and copy.wait().ctypes.data == tensor.data_ptr()


def test_requests_of_a_single_rank_come_back():
    pending = Table(1, owners=2).exchange(stop=[True, False], factor=[4, 1])
    assert pending.ready and pending.merged.stops == (True, False) and pending.merged.factors == (4, 1)
    assert Table(1).exchange().merged.stops == (False,)
