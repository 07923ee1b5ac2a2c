"""The choice of implementations: compiled code if it loads, else NumPy and Python, or what the environment variable forces."""

import os

import pytest
import torch

from lightning_hooks import RuleError, UnsupportedError, backends
from lightning_hooks.backends import choice, probes
from tests import forked

HIDDEN = """
import sys
sys.modules["lightning_hooks.backends._native"] = None  # an import of it fails, as where it was not built
"""
USE = """
import torch
from lightning_hooks.stats import kernels
from lightning_hooks.stats.accumulators import AccumulatorRows
from lightning_hooks.stats.accumulators.histogram import Histogram
from lightning_hooks.stats.measurement import Measurement, measure_all
from lightning_hooks.stats.table import Table
table = Table(2, [AccumulatorRows(Histogram(), (1,))])
table.measuring.add(0, Measurement(torch.tensor([1.0, 3.0])))
table.measuring.add(1, Measurement(torch.tensor([1.0, 3.0])))
assert table.moments[:, 1].tolist() == [2.0, 2.0]
assert table.measuring.put_all([0], measure_all([torch.ones(2)])) == [] and table.moments[0, 1] == 1.0
assert torch.equal(kernels.measure_many([torch.ones(2)])[0], kernels.measure(torch.ones(2)))
print(kernels.in_use())
"""


def run(script, **env):
    clean = {key: value for key, value in os.environ.items() if key != backends.VARIABLE}
    done = forked.run(["-c", script], {**clean, **env})
    return done.stdout.strip(), done.stderr


def built():
    try:
        import lightning_hooks.backends._native  # noqa: F401
    except ImportError:
        return False
    return True


def test_without_the_binary_the_reference_serves_and_says_why():
    out, err = run(HIDDEN + USE)
    assert out.startswith("torch (no compiled extension: "), err


def test_the_reference_can_be_asked_for():
    out, err = run(USE, LIGHTNING_HOOKS_KERNEL="reference")
    assert out == "torch (LIGHTNING_HOOKS_KERNEL=reference)", err


@pytest.mark.skipif(not built(), reason="the package was installed without a compiler")
@pytest.mark.parametrize("env", [{}, {"LIGHTNING_HOOKS_KERNEL": "native"}])
def test_where_it_was_built_the_compiled_kernel_serves(env):
    out, err = run("from lightning_hooks.stats import kernels; print(kernels.in_use())", **env)
    assert out in ("native (avx512)", "native (avx2)", "native (baseline)"), err


def test_asking_for_the_compiled_kernel_where_there_is_none_is_an_error():
    out, err = run(HIDDEN + USE, LIGHTNING_HOOKS_KERNEL="native")
    assert "UnsupportedError: LIGHTNING_HOOKS_KERNEL=native, but there is no compiled extension" in err
    assert "unset the variable" in err


def test_another_value_is_an_error():
    out, err = run(USE, LIGHTNING_HOOKS_KERNEL="fast")
    assert "RuleError: LIGHTNING_HOOKS_KERNEL='fast': choose from 'native', 'reference', 'triton'" in err


EACH = """
from lightning_hooks import backends
from lightning_hooks.hooks import plain
from lightning_hooks.stats import kernels
of_hooks = "native" if plain.IS_BUILT else "python"
print(kernels.in_use().split()[0], backends.hooks().serves, backends.events().serves, of_hooks)
"""


@pytest.mark.skipif(not built(), reason="the package was installed without a compiler")
@pytest.mark.parametrize(
    ("value", "want"),
    [
        ("", "native native native native"),
        ("reference", "torch python tensorboard python"),
        ("hooks=python", "native python native python"),
        ("reference, hooks=native", "torch native tensorboard native"),
        ("native,events=tensorboard", "native native tensorboard native"),
    ],
)
def test_each_part_can_be_forced(value, want):
    out, err = run(EACH, LIGHTNING_HOOKS_KERNEL=value)
    assert out == want, err


@pytest.mark.parametrize(
    ("value", "use"),
    [
        ("native", "import lightning_hooks.hooks"),
        ("hooks=native", "import lightning_hooks.hooks"),
        ("kernel=native", "import lightning_hooks.stats.kernels"),
        ("events=native", "from lightning_hooks import backends; backends.events()"),
    ],
)
def test_native_where_there_is_none_is_an_error_for_everything(value, use):
    out, err = run(HIDDEN + use, LIGHTNING_HOOKS_KERNEL=value)
    assert f"UnsupportedError: LIGHTNING_HOOKS_KERNEL={value}, but there is no compiled extension" in err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_triton_without_a_device_is_an_error():
    out, err = run("from lightning_hooks.stats import kernels; kernels.in_use_on_cuda()", LIGHTNING_HOOKS_KERNEL="triton")
    assert "UnsupportedError: LIGHTNING_HOOKS_KERNEL=triton, but torch sees no CUDA device" in err


def test_triton_that_does_not_work_is_an_error_where_it_is_forced(monkeypatch):
    def fails():
        raise OSError("no launcher\nfor many reasons")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.delenv(backends.VARIABLE, raising=False)
    assert str(backends.cuda(fails)) == "reference (no Triton: no launcher)"
    monkeypatch.setenv(backends.VARIABLE, "triton")
    with pytest.raises(UnsupportedError, match="but there is no Triton: no launcher"):
        backends.cuda(fails)
    monkeypatch.setenv(backends.VARIABLE, "cuda=reference")
    assert str(backends.cuda(fails)) == "reference (LIGHTNING_HOOKS_KERNEL=cuda=reference)"


@pytest.fixture
def tensor_hooks(monkeypatch):
    monkeypatch.delenv(backends.VARIABLE, raising=False)
    choice.hooks.cache_clear()
    yield choice.tensor_hooks.__wrapped__
    choice.hooks.cache_clear()


@pytest.mark.skipif(not built(), reason="the package was installed without a compiler")
def test_tensor_hooks_are_direct_where_a_backward_pass_calls_them(tensor_hooks, monkeypatch):
    assert str(tensor_hooks()) == "direct (a backward pass has called one)"
    monkeypatch.setenv(backends.VARIABLE, "tensor_hooks=register_hook")
    assert str(tensor_hooks()) == "register_hook (LIGHTNING_HOOKS_KERNEL=tensor_hooks=register_hook)"


@pytest.mark.skipif(not built(), reason="the package was installed without a compiler")
def test_tensor_hooks_are_registered_where_the_backward_pass_does_not_call_them(tensor_hooks, monkeypatch):
    def fails():
        raise RuntimeError("a backward pass called 0 of 2 hooks")

    monkeypatch.setattr(probes, "hook_dictionary", fails)
    assert str(tensor_hooks()) == "register_hook (no dictionary of hooks: a backward pass called 0 of 2 hooks)"
    monkeypatch.setenv(backends.VARIABLE, "tensor_hooks=direct")
    with pytest.raises(UnsupportedError, match="there is no dictionary of hooks: a backward pass called 0 of 2 hooks. Unset"):
        tensor_hooks()


@pytest.mark.parametrize("value", ["kernel", "kernel=fast", "gpu=triton", "native,fast"])
def test_what_there_is_not_cannot_be_forced(value, monkeypatch):
    monkeypatch.setenv(backends.VARIABLE, value)
    with pytest.raises(RuleError, match="leave it unset"):
        choice.forced()


@pytest.mark.skipif(not built(), reason="the package was installed without a compiler")
def test_a_torch_without_an_exchange_table_has_plain_torch_and_compiled_hooks():
    script = "import torch; del torch._C.TensorBase.__dlpack_c_exchange_api__" + EACH + "print(kernels.in_use())"
    if "__dlpack_c_exchange_api__" in vars(torch.Tensor):
        script = script.replace("torch._C.TensorBase", "torch.Tensor")
    out, err = run(script)
    assert out.splitlines()[0] == "torch native native native", err
    assert "has no DLPack exchange table" in out


@pytest.mark.skipif(not built(), reason="the package was installed without a compiler")
def test_a_kernel_that_was_built_for_other_moments_does_not_serve():
    script = "from lightning_hooks.backends import native; native.MOMENTS = 'count mean'\n" + EACH + "print(kernels.in_use())"
    out, err = run(script)
    assert out.splitlines() == [
        "torch native native native",
        "torch (no compiled extension: it was built for other moments: count mean)",
    ], err
    _, err = run(script, LIGHTNING_HOOKS_KERNEL="native")
    assert "UnsupportedError: LIGHTNING_HOOKS_KERNEL=native, but there is no compiled extension: it was built for" in err
