"""Tensors that are measured in Python: in the first step, and always if the C++ part was not built."""

import sys
import threading

import pytest
import torch
from torch import nn

from lightning_hooks import StatsMonitor, Watch, instrument


@pytest.fixture
def frequent_switches():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def test_calls_in_several_threads_are_all_measured(frequent_switches):
    model, x = nn.Sequential(nn.Identity()), torch.ones(1)

    def call():
        for _ in range(25):
            model(x)

    with instrument(model, [StatsMonitor([Watch(modules="0", tensors="output", stats=["norm", "histogram"])])]) as watched:
        for _ in range(2):
            threads = [threading.Thread(target=call) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            watched.step()
            assert watched.latest["output_norm/0"] == pytest.approx(10.0)
            assert watched.view.kept["histogram"].sum() == 100
