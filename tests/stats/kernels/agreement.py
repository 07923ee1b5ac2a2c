"""Compares the kernels of this machine with the reference, which computes in float64."""

import importlib
from types import ModuleType

import numpy as np
import pytest
import torch

from lightning_hooks.stats.histogram import histogram
from lightning_hooks.stats.kernels import reference
from lightning_hooks.stats.schema import ABS_SUM, COUNT, M2, MAX, MEAN, MIN, NONFINITE, UNDERFLOW, ZEROS

native: ModuleType | None
try:
    _native = importlib.import_module("lightning_hooks.backends._native")
    native = importlib.import_module("lightning_hooks.backends.native")
    SETS = [name for name in ("avx512", "avx2", "baseline") if _native.choose_instructions(name)]
    _native.choose_instructions(SETS[0])
except ImportError:
    native, _native, SETS = None, None, []

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
EXACT = [COUNT, MIN, MAX, ZEROS, NONFINITE, UNDERFLOW]


class Sub(torch.Tensor):
    """A subclass of tensor."""


needs_native = pytest.mark.skipif(native is None, reason="the package was installed without a compiler")

NOT_OURS = (  # tensors that the kernels of this machine do not measure
    torch.ones(3, dtype=torch.int64),
    torch.ones(3, dtype=torch.complex64),
    torch.ones(3, device="meta"),
    torch.eye(3).to_sparse(),
    torch.ones(3).as_subclass(Sub),
    torch.tensor([1 + 2j]).conj().imag,
    torch._efficientzerotensor(5),
)


def numbers(packed):
    return torch.frombuffer(bytearray(packed), dtype=torch.float64)


def agrees(tensor):
    """Compare the moments and histograms of every compiled instruction set with the reference."""
    want, counts = reference.measure(tensor), histogram(tensor)
    for name in SETS:
        _native.choose_instructions(name)
        agrees_with(want, counts, tensor, native)
    if SETS:
        _native.choose_instructions(SETS[0])
    return want


def agrees_with(want, want_counts, tensor, kernel):
    moments, counts = map(numbers, kernel.read_histogram(tensor))
    torch.testing.assert_close(moments, numbers(kernel.read(tensor)), rtol=0, atol=0, equal_nan=True)
    is_near(moments, want)
    assert torch.equal(counts, want_counts)
    is_near(without_magnitudes(kernel, tensor, want), want)


def without_magnitudes(kernel, tensor, want):
    """The moments measured without magnitudes, with the expected value in the column that is then not measured."""
    moments = torch.zeros(9, dtype=torch.float64)
    assert kernel.measure_many_into(moments, np.array([0]), [tensor], None, None, False) == []
    assert moments[ABS_SUM].isnan()
    moments[ABS_SUM] = want[ABS_SUM]
    return moments


def is_near(moments, want):
    """Counts and extremes are exact; the rest is as right as DESIGN.md asks."""
    torch.testing.assert_close(moments[EXACT], want[EXACT], rtol=0, atol=0, equal_nan=True)
    _assert_near(moments[MEAN], want[MEAN], 1e-6 * want[ABS_SUM] / max(want[COUNT], 1))
    _assert_near(moments[ABS_SUM], want[ABS_SUM], 1e-6 * want[ABS_SUM])
    # Allow an error of 1e-6 relative to the standard deviation, or relative to the norm if the data hardly vary.
    finest = 5e-324 * want[COUNT]  # the rounding of squares that are subnormal even in float64
    _assert_near(moments[M2], want[M2], 2e-6 * want[M2] + 1e-24 * want[COUNT] * want[MEAN].square() + finest)


def _assert_near(got, want, slack):
    if torch.isfinite(want):
        assert abs(got - want) <= slack, (got, want, slack)
    else:
        torch.testing.assert_close(got, want, equal_nan=True)


def normal(*shape, dtype=torch.float32, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)
