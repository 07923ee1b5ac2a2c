"""Launches of Triton kernels whose arguments are integers, addresses among them.

`kernel[grid](…)` looks at the type and value of every argument at every launch, which takes longer than a small kernel runs.
Here a kernel is compiled once for known types, and launched with plain numbers. Where that does not work (in the interpreter,
or in a version of Triton that compiles in another way) it is launched as Triton documents it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

import torch
import triton
from triton import knobs

from lightning_hooks.private import private, tried
from lightning_hooks.stats.kernels.triton_code import WARPS

Launch = Callable[..., None]
"""Takes the number of programs, the stream, and the integers in the order of the kernel's arguments."""


@cache
def launcher(kernel: Any, device: int, **constants: Any) -> Launch:
    """What launches a kernel on a device, which must be the current one whenever it is called.

    Args:
        kernel: of Triton; all its arguments but the constants are int64.
        device: its index.
        constants: the last arguments.
    """
    if not knobs.runtime.interpret:
        with suppress(Exception):
            return tried(
                "CompiledKernel.run, function, packed_metadata",
                lambda: launch_of(compiled(kernel, constants), tuple(constants.values())),
                "a launch on a CUDA device takes about 20 µs more",
            )

    def launch(programs: int, stream: int, *numbers: int) -> None:
        kernel[(programs,)](*numbers, **constants, num_warps=WARPS)

    return launch


def compiled(kernel: Any, constants: dict[str, Any], target: Any = None) -> Any:
    """The kernel for a target, that of the current device by default; for another one nothing of CUDA is needed."""
    from triton.compiler import ASTSource

    names = kernel.arg_names
    signature = {name: "constexpr" if name in constants else "i64" for name in names}
    places = {(names.index(name),): value for name, value in constants.items()}
    source = ASTSource(fn=kernel, signature=signature, constexprs=places)
    return triton.compile(source, target=target, options={"num_warps": WARPS})


def launch_of(found: Any, constants: tuple[Any, ...]) -> Launch:
    """What `found[grid](…)` does, without looking everything up again at each launch; hooks for profilers are not called."""
    found[(1,)]  # loads it, and builds what launches it
    run, function, metadata = found.run, found.function, found.packed_metadata

    def launch(programs: int, stream: int, *numbers: int) -> None:
        run(programs, 1, 1, stream, function, metadata, None, None, None, *numbers, *constants)

    return launch


def current_stream(device: int) -> int:
    """The current stream of a device, as Triton takes it; 0 where there is no device."""
    return 0 if device < 0 else _stream_of()(device)


@cache
def _stream_of() -> Callable[[int], int]:
    public: Callable[[int], int] = lambda device: int(torch.cuda.current_stream(device).cuda_stream)  # noqa: E731

    def find() -> Callable[[int], int]:
        raw: Callable[[int], int] = torch._C._cuda_getCurrentRawStream
        if raw(torch.cuda.current_device()) != public(torch.cuda.current_device()):
            raise AttributeError("it returns another stream")
        return raw

    return private("torch._C._cuda_getCurrentRawStream", find, public, "the public way takes 1 µs more for each tensor")
