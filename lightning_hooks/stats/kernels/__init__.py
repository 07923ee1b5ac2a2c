"""The single-pass measurement of a tensor: the seam behind which the kernels stand.

The compiled kernel serves where it was built and loads, the reference in plain torch otherwise; both give the same numbers.
The environment variable LIGHTNING_HOOKS_KERNEL chooses one, see `lightning_hooks._build`.
"""

from __future__ import annotations

from types import ModuleType

from lightning_hooks._build import VARIABLE, wanted
from lightning_hooks.errors import UnsupportedError
from lightning_hooks.stats.kernels import reference

__all__ = ["VARIABLE", "compiled", "in_use", "measure", "measure_many"]


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
measure = reference.measure if compiled is None else compiled.measure
measure_many = reference.measure_many if compiled is None else compiled.measure_many


def in_use() -> str:
    """Which kernel measures tensors in the memory of this machine, and why not the compiled one where it does not.

    Example:
        >>> in_use().split()[0] in ("native", "reference")
        True
    """
    return _IN_USE
