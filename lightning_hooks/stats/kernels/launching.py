"""Launches of Triton kernels whose arguments are integers, addresses among them.

`kernel[grid](…)` inspects the type and value of every argument at every launch, which takes longer than a small kernel runs.
This module compiles a kernel once for fixed types, and launches it with plain integers. If that does not work (in Triton's
interpreter, or with a version of Triton that compiles in another way), the kernel is launched as Triton documents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

import torch
import triton
from triton import knobs

from lightning_hooks.private import private, tried
from lightning_hooks.stats.kernels.handles import Handle, handle_of
from lightning_hooks.stats.kernels.triton_code import WARPS

Launch = Callable[..., None]
"""Launches a kernel. Arguments: the number of programs, the stream, and the integers in the order of the kernel's arguments."""


@cache
def launcher(kernel: Any, device: int, **constants: Any) -> Launch:
    """A function that launches a kernel on a device. The device must be the current one when the function is called.

    Args:
        kernel: a Triton kernel, whose arguments except for the constants are int64.
        device: the index of the device.
        constants: the values of the last arguments of the kernel.
    """
    loaded = _loaded(kernel, device, **constants)
    if loaded is not None:
        return loaded[1]

    def launch(programs: int, stream: int, *numbers: int) -> None:
        kernel[(programs,)](*numbers, **constants, num_warps=WARPS)

    return launch


def handle(kernel: Any, device: int, **constants: Any) -> Handle | None:
    """The kernel of `launcher` as the driver launches it; None if Triton does not tell, or launches it in another way.

    Args:
        kernel: as for `launcher`.
        device: the index of the device, which must be the current one.
        constants: as for `launcher`.
    """
    loaded = _loaded(kernel, device, **constants)
    if loaded is None:
        return None
    arguments = len(kernel.arg_names) - len(constants)
    lost = "Triton launches the kernels for tensors of hooks, which takes about 10 µs more for each"
    return private("CompiledKernel.asm, metadata", lambda: handle_of(loaded[0], arguments), None, lost)


@cache
def _loaded(kernel: Any, device: int, **constants: Any) -> tuple[Any, Launch] | None:
    """The compiled kernel, loaded on the current device, and the function that launches it; None to launch as documented."""
    if not knobs.runtime.interpret:
        with suppress(Exception):
            return tried(
                "CompiledKernel.run, function, packed_metadata",
                lambda: _load(compiled(kernel, constants), tuple(constants.values())),
                "a launch on a CUDA device takes about 20 µs more",
            )
    return None


def _load(compiled_kernel: Any, constants: tuple[Any, ...]) -> tuple[Any, Launch]:
    return compiled_kernel, launch_of(compiled_kernel, constants)


def compiled(kernel: Any, constants: dict[str, Any], target: Any = None) -> Any:
    """The compiled kernel for a target, by default the current device. Compiling for another target needs no device."""
    from triton.compiler import ASTSource

    names = kernel.arg_names
    signature = {name: "constexpr" if name in constants else "i64" for name in names}
    values = {(names.index(name),): value for name, value in constants.items()}
    source = ASTSource(fn=kernel, signature=signature, constexprs=values)
    return triton.compile(source, target=target, options={"num_warps": WARPS})


def launch_of(compiled_kernel: Any, constants: tuple[Any, ...]) -> Launch:
    """A function that does the same as `compiled_kernel[grid](…)`, but looks up attributes once and calls no profiler hooks."""
    # Indexing the kernel by a grid loads it onto the device and builds `run`, its launcher. Nothing is launched.
    compiled_kernel[(1,)]
    run, function, metadata = compiled_kernel.run, compiled_kernel.function, compiled_kernel.packed_metadata

    def launch(programs: int, stream: int, *numbers: int) -> None:
        run(programs, 1, 1, stream, function, metadata, None, None, None, *numbers, *constants)

    return launch


def current_stream(device: int) -> int:
    """The handle of the current stream of a device, as Triton takes it; 0 for a negative index, which stands for no device."""
    return 0 if device < 0 else _stream_of()(device)


@contextmanager
def after(stream: int, device: int) -> Iterator[None]:
    """A context whose work on the current stream runs after all work on another stream so far, and before all later work there.

    Args:
        stream: the handle of the other stream.
        device: the index of the device of both; a negative one stands for no device.
    """
    if device < 0 or current_stream(device) == stream:
        yield
        return
    current = torch.cuda.current_stream(device)
    other = torch.cuda.ExternalStream(stream, device) if stream else torch.cuda.default_stream(device)
    current.wait_stream(other)
    yield
    other.wait_stream(current)


@cache
def _stream_of() -> Callable[[int], int]:
    public: Callable[[int], int] = lambda device: int(torch.cuda.current_stream(device).cuda_stream)  # noqa: E731

    def find() -> Callable[[int], int]:
        raw: Callable[[int], int] = torch._C._cuda_getCurrentRawStream
        if raw(torch.cuda.current_device()) != public(torch.cuda.current_device()):
            raise AttributeError("it returns another stream")
        return raw

    return private("torch._C._cuda_getCurrentRawStream", find, public, "the public way takes 1 µs more for each tensor")
