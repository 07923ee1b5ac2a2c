"""The compiled part of the package, where it serves."""

from __future__ import annotations

from types import ModuleType

from lightning_hooks import backends


def compiled() -> ModuleType | None:
    """The compiled extension; None where NumPy serves."""
    return backends.events().module
