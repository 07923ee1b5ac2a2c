"""A driver in C that stands in for that of a device, so that fits on the CPU go through everything that a device does.

`install` makes tables in host memory launch kernels on it: from C++ through the pointers of the driver, and from Python.
"""

import ctypes
import functools
import importlib.util
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lightning_hooks.stats import kernels

Fit = Callable[[], tuple[list[dict[str, float]], list[Tensor]]]
LIST, PAIRED, MERGE, COMPARE, UNITS, COUNT, CLEAR, EIGHT = 8, 16, 32, 64, 128, 256, 512, 1024
_KINDS = {
    "measure_one": 0,
    "measure_list": LIST,
    "measure_eight": EIGHT,
    "merge_rows": MERGE,
    "count_one": COUNT,
    "count_list": COUNT + LIST,
    "clear_counts": CLEAR,
    "compare_list": COMPARE,
    "merge_products": COMPARE + MERGE,
    "measure_columns": UNITS,
    "measure_runs": UNITS + LIST,
    "merge_parts": UNITS + MERGE,
}


def missing() -> str | None:
    """What this machine lacks for the driver; None for nothing."""
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    from lightning_hooks.stats.kernels import driver

    if driver.native() is None:
        return "nothing is compiled"
    return None if _compiler() else "there is no C compiler"


def _compiler() -> str | None:
    return next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)


@functools.cache
def build() -> ctypes.CDLL:
    """The driver, compiled."""
    compiler = _compiler()
    assert compiler is not None, missing()
    folder = Path(tempfile.mkdtemp())
    target = folder / "stand_in.so"
    source = Path(__file__).with_suffix(".c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", str(target), str(source), "-lm"], check=True)
    library = ctypes.CDLL(str(target))
    shutil.rmtree(folder, ignore_errors=True)
    return library


class StandIn:
    """The driver, and what it answers.

    Args:
        launches: the name of the function that launches: `cuLaunchKernel`, or `nothing`, which only counts.
    """

    def __init__(self, launches: str = "cuLaunchKernel") -> None:
        from lightning_hooks.stats.kernels.driver import Driver

        self._library = build()
        self._launch = getattr(self._library, launches)
        names = ("cuCtxGetCurrent", "cuStreamIsCapturing", "work_stream")
        self.driver = Driver(*map(_address, (self._launch, *(getattr(self._library, name) for name in names))), device_type=1)
        self.status = self.capturing = self.stream = 0
        self.context = self.own_context = 7
        self.launches = 0
        self.failing = None
        self.from_python: list[str] = []

    status = property(lambda self: self._of(ctypes.c_int, "status").value, lambda self, v: self._set(ctypes.c_int, "status", v))
    capturing = property(
        lambda self: self._of(ctypes.c_int, "capturing").value, lambda self, v: self._set(ctypes.c_int, "capturing", v)
    )
    context = property(None, lambda self, v: self._set(ctypes.c_void_p, "context", v))
    stream = property(
        lambda self: self._of(ctypes.c_void_p, "stream").value or 0, lambda self, v: self._set(ctypes.c_void_p, "stream", v)
    )
    launches = property(
        lambda self: self._of(ctypes.c_longlong, "launches").value, lambda self, v: self._set(ctypes.c_longlong, "launches", v)
    )

    # The name of the kernel whose launches fail; None for none.
    failing = property(None, lambda self, v: self._set(ctypes.c_int, "failing", -1 if v is None else _KINDS[v]))

    def last(self, many: int) -> list[str]:
        """The names of the kernels of the last launches, at most 64."""
        history, names = self._of(ctypes.c_int * 64, "history"), {kind: name for name, kind in _KINDS.items()}
        return [names[history[i % 64]] for i in range(self.launches - many, self.launches)]

    def _of(self, kind: Any, name: str) -> Any:
        return kind.in_dll(self._library, name)

    def _set(self, kind: Any, name: str, value: int) -> None:
        self._of(kind, name).value = value

    def launcher(self, kernel: Any, device: int, **constants: Any) -> Any:
        """As `launching.launcher`: a function that launches a kernel from Python."""
        function = self.function(kernel, **constants)

        def launch(programs: int, stream: int, *numbers: int) -> None:
            self.from_python.append(_name(kernel))
            values = [ctypes.c_int64(number) for number in (*numbers, 0, 0, 0, 0)]
            parameters = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
            sizes = map(ctypes.c_uint, (programs, 1, 1, 128, 1, 1, 0))
            failed = self._launch(ctypes.c_void_p(function), *sizes, ctypes.c_void_p(stream), parameters, None)
            if failed:
                raise RuntimeError(f"Triton Error [CUDA]: {failed}")

        return launch

    def handle(self, kernel: Any, device: int, **constants: Any) -> Any:
        """As `launching.handle`."""
        from lightning_hooks.stats.kernels.handles import Handle

        return Handle(self.function(kernel, **constants), 0, 128, kernel)

    @staticmethod
    def function(kernel: Any, CODE: int = 0, PAIRED: bool = False, **constants: Any) -> int:
        """The handle of a kernel."""
        return 1 + _KINDS[_name(kernel)] + CODE + (16 if PAIRED else 0)


def install(
    monkeypatch: Any, launches: str = "cuLaunchKernel", through: bool = True, late: tuple[bool, bool] = (True, False)
) -> StandIn:
    """Make tables in host memory measure as on a device.

    Args:
        monkeypatch: of pytest.
        launches: as for `StandIn`.
        through: whether C++ launches kernels; if not, Python launches all.
        late: whether gradients, and whether outputs, may be measured late.
    """
    from lightning_hooks.stats.kernels import cuda, cuda_counts, driver, kept_tables, on_cuda, queued_rows, queued_units

    found = StandIn(launches)
    kept_tables._kept.clear()
    monkeypatch.setattr(kernels, "on_device", lambda tensor: None if torch.compiler.is_compiling() else on_cuda)
    monkeypatch.setattr(kernels, "is_capturing", lambda device: bool(found.capturing))
    for module in (cuda, cuda_counts):
        monkeypatch.setattr(module, "launcher", found.launcher)
    for module in (queued_rows, queued_units):
        monkeypatch.setattr(module, "handle", found.handle)
    monkeypatch.setattr(driver, "is_used", through)
    monkeypatch.setattr(driver, "gradients_are_late", late[0])
    monkeypatch.setattr(driver, "outputs_are_late", late[1])
    monkeypatch.setattr(on_cuda, "driver_of", lambda device: found.driver)
    for module in (cuda, cuda_counts, kept_tables, queued_rows, queued_units):
        monkeypatch.setattr(module, "current_stream", lambda device: found.stream)
    return found


def numbers_of_the_ways(monkeypatch: Any, fit: Fit, kernel: str) -> list[dict[str, float]]:
    """Assert that a fit has the same numbers whether C++ launches, Python does, or the CPU measures, and return those of C++.

    Args:
        monkeypatch: of pytest.
        fit: trains, and returns the numbers of each step and the weights at the end.
        kernel: the name of one that C++ launches mostly.
    """
    plain, weights = fit()
    ways = []
    for through in (True, False):
        with monkeypatch.context() as patch:
            device = install(patch, through=through, late=(False, False))
            found, same_weights = fit()
            ways.append((found, device.from_python.count(kernel), device.launches))
            assert all(map(torch.equal, weights, same_weights))
    assert ways[0][0] == ways[1][0] and ways[0][2] == ways[1][2] and 0 < ways[0][1] < ways[1][1] / 4
    for step, other in zip(ways[0][0], plain, strict=True):
        assert step.keys() == other.keys()
        for tag, value in step.items():
            assert value == pytest.approx(other[tag], rel=1e-5, abs=1e-7), tag
    return ways[0][0]


def _name(kernel: Any) -> str:
    return str(getattr(kernel, "__name__", None) or kernel.fn.__name__)


def _address(function: Any) -> int:
    return int(ctypes.cast(function, ctypes.c_void_p).value or 0)
