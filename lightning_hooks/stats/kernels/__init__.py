"""The single-pass measurement of a tensor: the seam behind which the kernels stand.

In the memory of this machine the compiled kernel serves where it was built and loads, on a CUDA device Triton where it works,
the reference in plain torch otherwise; all give the same numbers. The environment variable LIGHTNING_HOOKS_KERNEL chooses one,
see `lightning_hooks._build`; `reference` then serves everywhere.
"""

from __future__ import annotations

from types import ModuleType

from lightning_hooks._build import VARIABLE, wanted
from lightning_hooks.errors import UnsupportedError
from lightning_hooks.stats.kernels import elsewhere
from lightning_hooks.stats.kernels.elsewhere import on_device

__all__ = ["VARIABLE", "compiled", "in_use", "in_use_on_cuda", "measure", "measure_many", "on_device"]


def _choose() -> tuple[ModuleType | None, str]:
    choice = wanted()
    if choice == "reference":
        return None, f"reference ({VARIABLE}=reference)"
    try:
        from lightning_hooks.stats.kernels import native
    except ImportError as error:
        if choice == "native":
            raise UnsupportedError(
                f"{VARIABLE}=native, but the compiled kernel is not there: {error}. It is built when the package is installed "
                "where a C++ compiler is found; unset the variable to go on with the reference kernel"
            ) from error
        return None, f"reference (no compiled kernel: {error})"
    return native, native.describe()


compiled: ModuleType | None  # the module `native` where it serves
compiled, _IN_USE = _choose()
measure = elsewhere.measure if compiled is None else compiled.measure
measure_many = elsewhere.measure_many if compiled is None else compiled.measure_many


def in_use() -> str:
    """Which kernel measures tensors in the memory of this machine, and why not the compiled one where it does not.

    Example:
        >>> in_use().split()[0] in ("native", "reference")
        True
    """
    return _IN_USE


def in_use_on_cuda() -> str:
    """Which kernel measures tensors on a CUDA device, and why not Triton where it does not.

    Example:
        >>> in_use_on_cuda().split()[0] in ("triton", "reference", "none")
        True
    """
    return elsewhere.choose()[1]
