"""Which kernel serves: the compiled one where it loads, the reference otherwise, and what the environment variable asks for."""

import os
import subprocess
import sys

import pytest

from lightning_hooks.stats import kernels

HIDDEN = """
import sys
sys.modules["lightning_hooks.stats.kernels._native"] = None  # an import of it fails, as where it was not built
"""
USE = """
import torch
from lightning_hooks.stats import kernels
from lightning_hooks.stats.measurement import Measurement, measure_all
from lightning_hooks.stats.table import Table
table = Table(2, histogram_rows=(1,))
table.add(0, Measurement(torch.tensor([1.0, 3.0])))
table.add(1, Measurement(torch.tensor([1.0, 3.0])))
assert table.moments[:, 1].tolist() == [2.0, 2.0]
assert table.put_all([0], measure_all([torch.ones(2)])) == [] and table.moments[0, 1] == 1.0
assert torch.equal(kernels.measure_many([torch.ones(2)])[0], kernels.measure(torch.ones(2)))
print(kernels.in_use())
"""


def run(script, **env):
    clean = {key: value for key, value in os.environ.items() if key != kernels.VARIABLE}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, env={**clean, **env})
    return done.stdout.strip(), done.stderr


def built():
    try:
        import lightning_hooks.stats.kernels._native  # noqa: F401
    except ImportError:
        return False
    return True


def test_without_the_binary_the_reference_serves_and_says_why():
    out, err = run(HIDDEN + USE)
    assert out.startswith("numpy (no compiled kernel: "), err


def test_the_reference_can_be_asked_for():
    out, err = run(USE, LIGHTNING_HOOKS_KERNEL="reference")
    assert out == "numpy (LIGHTNING_HOOKS_KERNEL=reference)", err


@pytest.mark.skipif(not built(), reason="the package was installed without a compiler")
@pytest.mark.parametrize("env", [{}, {"LIGHTNING_HOOKS_KERNEL": "native"}])
def test_where_it_was_built_the_compiled_kernel_serves(env):
    out, err = run("from lightning_hooks.stats import kernels; print(kernels.in_use())", **env)
    assert out in ("native (avx512)", "native (avx2)", "native (baseline)"), err


def test_asking_for_the_compiled_kernel_where_there_is_none_is_an_error():
    out, err = run(HIDDEN + USE, LIGHTNING_HOOKS_KERNEL="native")
    assert "UnsupportedError: LIGHTNING_HOOKS_KERNEL=native, but the compiled kernel is not there" in err
    assert "unset the variable" in err


def test_another_value_is_an_error():
    out, err = run(USE, LIGHTNING_HOOKS_KERNEL="fast")
    assert "RuleError: LIGHTNING_HOOKS_KERNEL='fast': there are 'native' and 'reference'" in err
