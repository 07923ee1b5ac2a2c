"""Launches of Triton kernels whose arguments are integers, addresses among them.

`kernel[grid](…)` looks at the type and value of every argument at every launch, which takes longer than a small kernel runs.
Here a kernel is compiled once for known types, and launched with plain numbers. Where that does not work (in the interpreter,
or in a version of Triton that compiles in another way) it is launched as Triton documents it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import triton
from triton import knobs

from lightning_hooks.stats.kernels.triton_code import WARPS

_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # a tenth of the public way; absent in builds without CUDA
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
        try:
            return _compiled(compiled(kernel, constants), tuple(constants.values()))
        except (AttributeError, TypeError, ImportError):
            pass

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


def _compiled(found: Any, constants: tuple[Any, ...]) -> Launch:
    """What `found[grid](…)` does, without looking everything up again at each launch; hooks for profilers are not called."""
    found[(1,)]  # loads it, and builds what launches it
    run, function, metadata = found.run, found.function, found.packed_metadata

    def launch(programs: int, stream: int, *numbers: int) -> None:
        run(programs, 1, 1, stream, function, metadata, None, None, None, *numbers, *constants)

    return launch


def current_stream(device: int) -> int:
    """The current stream of a device, as Triton takes it; 0 where there is no device."""
    if device < 0:
        return 0
    return int(_raw_stream(device) if _raw_stream is not None else torch.cuda.current_stream(device).cuda_stream)
