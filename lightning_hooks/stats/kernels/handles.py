"""Handles of compiled kernels, by which the driver launches them without Triton."""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

_MOST_SCRATCH: Final = 4  # pointers to scratch memory that the compiled part passes after the arguments of a kernel
# What a launch of Triton provides beside the arguments, as its metadata names it.
_NEEDS: Final = ("global_scratch_size", "profile_scratch_size", "launch_cooperative_grid", "launch_pdl")
_PARAMETER: Final = re.compile(r"\.param\s+\.(?:align\s+\d+\s+\.)?([a-z]\d+)")


class Handle(NamedTuple):
    """A kernel that is loaded on a device, as the driver launches it.

    Args:
        function: the handle of the kernel.
        shared: bytes of shared memory.
        threads: of a program.
        kernel: owns the kernel, which is unloaded when this object is freed.
    """

    function: int
    shared: int
    threads: int
    kernel: Any


def handle_of(compiled_kernel: Any, arguments: int) -> Handle:
    """The handle of a kernel that Triton has compiled and loaded.

    Args:
        compiled_kernel: from `launching.compiled`.
        arguments: the number of its arguments, without constants; all are int64.

    Raises:
        ValueError: the compiled part cannot launch the kernel: it passes 8 bytes for every argument, and empty scratch memory.
    """
    metadata = compiled_kernel.metadata
    sizes = parameters_in(compiled_kernel.asm["ptx"])
    if not arguments <= len(sizes) <= arguments + _MOST_SCRATCH or any(size not in ("u64", "b64") for size in sizes):
        raise ValueError(f"the kernel takes other parameters: {sizes}")
    needs = [name for name in _NEEDS if getattr(metadata, name, False)]
    if needs or getattr(metadata, "num_ctas", 1) != 1:
        raise ValueError(f"the kernel needs {', '.join(needs) or 'clusters of programs'}")
    return Handle(compiled_kernel.function, metadata.shared, 32 * metadata.num_warps, compiled_kernel)


def parameters_in(ptx: str) -> list[str]:
    """The types of the parameters of the kernel in a text of PTX.

    Example:
        >>> parameters_in(".visible .entry f( .param .u64 f_param_0, .param .u32 f_param_1 )")
        ['u64', 'u32']
    """
    entry = ptx[ptx.index(".entry") :]
    return _PARAMETER.findall(entry[: entry.index(")")])
