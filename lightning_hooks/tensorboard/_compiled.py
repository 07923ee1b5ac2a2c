"""The compiled part of the package, where it serves."""

from __future__ import annotations

from types import ModuleType


def compiled() -> ModuleType | None:
    """The compiled kernel; None where NumPy serves. Asked for when something is written: reading a run does not load torch."""
    from lightning_hooks.stats import kernels

    return kernels.compiled
