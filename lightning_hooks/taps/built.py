"""The compiled part of the hooks, where it was built and is wanted."""

from __future__ import annotations

from types import ModuleType
from typing import Final

from lightning_hooks._build import wanted


def _find() -> ModuleType | None:
    if wanted() == "reference":
        return None
    try:
        from lightning_hooks.taps import _hooks
    except ImportError:
        return None
    return _hooks


compiled: Final = _find()
