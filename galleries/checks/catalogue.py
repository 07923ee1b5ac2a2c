"""All patterns of the gallery: those of the modules of this package named `healthy_*` and `fault_*`."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

import galleries.checks as gallery
from galleries.checks.case import Pattern


def _patterns(prefix: str) -> list[Pattern]:
    names = sorted(module.name for module in iter_modules(gallery.__path__) if module.name.startswith(prefix))
    return [pattern for name in names for pattern in import_module(f"{gallery.__name__}.{name}").PATTERNS]


def healthy() -> list[Pattern]:
    """Models of which no check may warn, let alone fail."""
    return _patterns("healthy_")


def faulty() -> list[Pattern]:
    """Models each of which has one planted bug."""
    return _patterns("fault_")
