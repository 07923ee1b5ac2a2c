"""What kind of logger a logger is, by the names of its class and bases: its package need not be installed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

T = TypeVar("T")


def kinds_of(logger: Any) -> set[str]:
    """The names of the class of a logger and of its bases.

    Example:
        >>> "dict" in kinds_of({})
        True
    """
    return {kind.__name__ for kind in type(logger).__mro__}


def of_kind(logger: Any, by_kind: Mapping[str, T]) -> T | None:
    """The first entry of a mapping whose key is a kind of a logger; None without one."""
    kinds = kinds_of(logger)
    return next((value for kind, value in by_kind.items() if kind in kinds), None)
