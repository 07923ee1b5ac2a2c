"""The operations that measure in compiled code as the compiler sees them, with the reference in place of their kernels."""

from __future__ import annotations

import ctypes
import functools

import pytest
import torch
from torch import Tensor

from lightning_hooks.stats.kernels import reference
from lightning_hooks.stats.moments import merge


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let hooks that are traced from now on take these operations; `stand_in` makes tables in host memory ask for them."""
    from lightning_hooks.stats.kernels import in_graphs

    assert in_graphs.measure is not None  # importing the module defines the operations that are replaced
    _library()
    for name in ("measure", "measure_grad"):
        monkeypatch.setattr(torch.ops.lightning_hooks, name, getattr(torch.ops.lightning_hooks_tests, name))


@functools.cache
def _library() -> torch.library.Library:
    def add(x: Tensor, place: Tensor, magnitudes: bool) -> None:
        address = int(place[0])
        if address:
            row = torch.frombuffer((ctypes.c_double * 9).from_address(address), dtype=torch.float64)
            row.copy_(merge(row, reference.measure(x)))
            place[1] += 1

    def add_grad(grad: Tensor, place: Tensor, magnitudes: bool) -> Tensor:
        add(grad, place.clone(), magnitudes)
        return torch.zeros(1)

    library = torch.library.Library("lightning_hooks_tests", "DEF")
    library.define("measure(Tensor x, Tensor(a!) place, bool magnitudes) -> ()")
    library.define("measure_grad(Tensor grad, Tensor place, bool magnitudes) -> Tensor")
    library.impl("measure", add, "CompositeExplicitAutograd")
    library.impl("measure_grad", add_grad, "CompositeExplicitAutograd")
    torch.library.register_fake("lightning_hooks_tests::measure", lambda x, place, magnitudes: None)
    torch.library.register_fake("lightning_hooks_tests::measure_grad", lambda grad, place, magnitudes: torch.empty(1))
    return library
