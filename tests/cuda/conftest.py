"""Every test here is for a CUDA device, and is skipped where there is none.

With LIGHTNING_HOOKS_TEST_DEVICE=cpu they run on the CPU, with copies that come late as from a device, and with tables that
launch kernels on a driver in C: so their code is tried.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
import torch

from tests import late_copies
from tests.stats.kernels import stand_in


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> str:
    """`cuda`, or `cpu` where that is asked for."""
    wanted = os.environ.get("LIGHTNING_HOOKS_TEST_DEVICE", "cuda")
    if wanted == "cpu":
        late_copies.install(monkeypatch)
        if stand_in.missing() is None:
            stand_in.install(monkeypatch)
    elif not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA device")
    return wanted


@pytest.fixture
def without_waiting(device: str) -> Callable[[], AbstractContextManager[None]]:
    """A context in which waiting for the device is an error."""

    @contextmanager
    def checked() -> Iterator[None]:
        if device == "cpu":
            yield
            return
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")

    return checked
