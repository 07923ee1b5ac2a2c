"""What a launch takes on the host: the driver alone, Triton's launcher, and the writers of a table.

python -m benchmarks.gpu.launches

*Tight* is the mean of launches in a loop. *Cold* is the median of launches from hooks on the leaf modules of D in its forward.
Between these launches torch runs, so that the caches of the processor hold other data.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from benchmarks import output
from benchmarks.gpu.bandwidth import Fallback
from benchmarks.modes import set_launches
from benchmarks.workloads import SIZES
from lightning_hooks.stats.table import Table

_LOOP = Path(__file__).with_name("launch_loop.cpp")
_CALLS = 200  # of a series; fewer than the queue of a device holds


class Launcher(NamedTuple):
    """A way to launch the measurement of a tensor.

    Args:
        name: of its row.
        parameters: how many integers a launch passes.
        seconds: launches the measurement of a tensor a number of times, and returns the seconds.
        clear: called between series and not timed.
    """

    name: str
    parameters: int
    seconds: Callable[[Tensor, int], float]
    clear: Callable[[], None]


def build_loop(folder: Path) -> Any:
    """The compiled loop, or None without a C++ compiler.

    Args:
        folder: of the library.
    """
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        return None
    path = folder / "launch_loop.so"
    made = subprocess.run([compiler, "-O2", "-std=c++17", "-shared", "-fPIC", str(_LOOP), "-o", str(path)], capture_output=True)
    if made.returncode != 0:
        return None
    library = ctypes.CDLL(str(path))
    library.nanoseconds.restype = ctypes.c_double
    pointer, unsigned = ctypes.c_void_p, ctypes.c_uint
    library.nanoseconds.argtypes = [pointer, pointer, unsigned, unsigned, pointer, pointer, ctypes.c_int]
    return library


def _bare(library: Any, parameters: int, device: str) -> Launcher:
    """The function of the driver in a loop in C++."""
    integers = (ctypes.c_int64 * 32)()
    function, threads, shared, stream, kept = None, 128, 0, None, None
    launch = ctypes.cast(library.launch_nothing, ctypes.c_void_p).value
    if device == "cuda":
        kept = _compiled(parameters)
        kept[(1,)]  # loads it onto the device
        function, shared = kept.function, kept.metadata.shared
        stream = torch.cuda.current_stream().cuda_stream
        driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
        launch = ctypes.cast(driver.cuLaunchKernel, ctypes.c_void_p).value

    def seconds(tensor: Tensor, calls: int, kept: Any = kept) -> float:
        taken: float = library.nanoseconds(launch, function, threads, shared, stream, integers, calls)
        if taken < 0:
            raise RuntimeError("the driver launches nothing")
        return taken * 1e-9

    return Launcher("cuLaunchKernel", parameters, seconds, lambda: None)


def _compiled(parameters: int) -> Any:
    """A kernel that does nothing if all its parameters are 0."""
    from benchmarks.gpu import empty_kernels
    from lightning_hooks.stats.kernels.launching import compiled

    return compiled(empty_kernels.KERNELS[parameters], {})


def _triton(device: str) -> Launcher:
    """The launcher that Triton compiles for a kernel, called with plain integers."""
    from lightning_hooks.stats.kernels.launching import launch_of

    launch, stream = launch_of(_compiled(4), ()), torch.cuda.current_stream().cuda_stream

    def seconds(tensor: Tensor, calls: int) -> float:
        started = time.perf_counter()
        for _ in range(calls):
            launch(1, stream, 0, 0, 0, 0)
        return time.perf_counter() - started

    return Launcher("Triton's launcher", 4, seconds, lambda: None)


def _writer(name: str, device: str) -> Launcher:
    """The writer of a table, which a hook calls."""
    table = Table(1, device=device, magnitudes=False)
    write = table.writer(0, Fallback(table))
    return Launcher(name, 4, lambda tensor, calls: _seconds(write, tensor, calls), table.clear)


def _late_writer(device: str) -> Launcher:
    """The writer of a table, which a hook calls with gradients: eight of them take one launch."""
    table = Table(1, device=device, magnitudes=False)
    hook = _gradient_hook(table.writer(0, Fallback(table)))

    def clear() -> None:
        table.flush()
        table.exchange()  # compares what was measured in the first hooks and later
        table.clear()

    return Launcher("writer of a table, eight gradients late", 24, lambda tensor, calls: _seconds(hook, tensor, calls), clear)


def _gradient_hook(write: Callable[[Tensor], None]) -> Callable[[Tensor], None]:
    from lightning_hooks.hooks import HookSwitch
    from lightning_hooks.hooks.plain import GradReader

    switch = HookSwitch()
    switch.is_on = switch.only_loss = True
    return GradReader(switch, write)


def _compiled_writers(library: Any) -> list[Launcher]:
    """The writers of the compiled part for tensors in host memory and a driver that launches nothing; none if it is absent."""
    if importlib.util.find_spec("triton") is None:
        return []
    from lightning_hooks.stats.kernels.driver import Driver, native
    from lightning_hooks.stats.kernels.queued_rows import QueuedRows

    if native() is None:
        return []
    names = ("launch_nothing", "some_context", "not_capturing", "no_stream")
    launch, context, capturing, stream = (ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0 for name in names)
    rows = QueuedRows(torch.zeros(9, dtype=torch.float64), Driver(launch, context, capturing, stream, device_type=1))
    for set_kernel in (rows.queue.set_kernel, rows.queue.set_kernel_of_eight):
        set_kernel(0, 1, 0, 128)
    rows.queue.decide(0, True)
    write = rows.row_writer(0, 0, Fallback(Table(1)))
    hook, late = _gradient_hook(write), "writer of a table, eight gradients late, C++ alone"
    return [
        Launcher("writer of a table, C++ alone", 4, lambda tensor, calls: _seconds(write, tensor, calls), rows.drop),
        Launcher(late, 24, lambda tensor, calls: _seconds(hook, tensor, calls), rows.drop),
    ]


def _seconds(write: Callable[[Tensor], None], tensor: Tensor, calls: int) -> float:
    started = time.perf_counter()
    for _ in range(calls):
        write(tensor)
    return time.perf_counter() - started


def launchers(device: str, folder: Path) -> Iterator[Launcher]:
    """The ways to launch that there are on this machine.

    Args:
        device: `cpu` or `cuda`.
        folder: for the compiled loop.
    """
    library = build_loop(folder)
    if library is not None:
        yield _bare(library, 4, device)
        yield _bare(library, 26, device)
    if library is not None and device == "cpu":
        yield from _compiled_writers(library)
    if device == "cuda":
        yield _triton(device)
        before = set_launches({"is_used": False})
        yield _writer("writer of a table, from Python", device)
        set_launches(before)
        yield _late_writer(device)
    yield _writer("writer of a table", device)


def tight(launcher: Launcher, device: str, tries: int) -> float:
    """Seconds of a launch in a loop: the best of several series.

    Args:
        launcher: what is timed.
        device: `cpu` or `cuda`.
        tries: the number of series.
    """
    tensor = torch.randn(128, 256, device=device)
    found = []
    for _ in range(tries + 1):  # the first compiles
        launcher.clear()
        _wait(device)
        found.append(launcher.seconds(tensor, _CALLS) / _CALLS)
    _wait(device)
    launcher.clear()
    return min(found[1:])


def cold(launcher: Launcher, net: nn.Module, batch: Tensor, device: str, forwards: int) -> float:
    """Seconds of a launch from a hook on a leaf module: the median of all hooks of several forwards.

    Args:
        launcher: what is timed.
        net: has the hooks.
        batch: for the net.
        device: `cpu` or `cuda`.
        forwards: how many are timed.
    """
    taken: list[float] = []

    def hook(module: nn.Module, args: Any, result: Any) -> None:
        if isinstance(result, Tensor):
            taken.append(launcher.seconds(result, 1))

    with _hooks(net, hook), torch.no_grad():
        for _ in range(forwards + 1):
            launcher.clear()
            net(batch)
            _wait(device)
    launcher.clear()
    return statistics.median(taken[len(taken) // (forwards + 1) :])  # without the first forward


@contextmanager
def _hooks(net: nn.Module, hook: Callable[..., None]) -> Iterator[None]:
    handles = [module.register_forward_hook(hook) for module in net.modules() if not any(module.children())]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def main(arguments: list[str] | None = None) -> None:
    """Measure and write."""
    parser = output.arguments(main.__doc__ or "")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    options = parser.parse_args(arguments)
    is_cuda = options.device == "cuda"
    workload = SIZES["gpu" if is_cuda else "tiny"]["D"]
    net, (batch, _) = workload.net().to(options.device), workload.batch()
    batch = batch.to(options.device)
    rows: list[dict[str, Any]] = []
    with TemporaryDirectory() as folder:
        for launcher in launchers(options.device, Path(folder)):
            row: dict[str, Any] = {"what": launcher.name, "parameters": launcher.parameters}
            row["tight_us"] = tight(launcher, options.device, 20 if is_cuda else 2) * 1e6
            row["cold_us"] = cold(launcher, net, batch, options.device, 5 if is_cuda else 1) * 1e6
            rows.append(row)
            print(f"{row['what']}, {row['parameters']}: {row['tight_us']:.2f} µs tight, {row['cold_us']:.2f} cold", flush=True)
            output.write(options.name or "launches", rows, options.out)


if __name__ == "__main__":
    main()
