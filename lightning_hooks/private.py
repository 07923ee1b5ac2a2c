"""Access to private names of torch, Lightning and TensorBoard: each name is tested before use and has a public fallback.

docs/support.md lists the names, and for each the consequence of its absence. `LIGHTNING_HOOKS_PRIVATE_NAMES=off` treats all of
them as absent. This module imports none of these libraries, so that reading a run does not load them.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, Final, TypeVar

T = TypeVar("T")
VARIABLE: Final = "LIGHTNING_HOOKS_PRIVATE_NAMES"
TESTED_TORCH: Final = (2, 15)
_lost: dict[str, str] = {}
_logger = logging.getLogger("lightning_hooks")

LOST: Final[Mapping[str, str]] = MappingProxyType(_lost)
"""The private names that were looked up and cannot be used in this process, each with the consequence."""


@cache
def are_off() -> bool:
    """Whether private names are treated as absent."""
    return os.environ.get(VARIABLE, "") == "off"


def tried(name: str, find: Callable[[], T], lost: str) -> T:
    """As `private`, for a caller with its own fallback: log the error of `find` and raise it again."""
    try:
        if are_off():
            raise AttributeError(f"{VARIABLE}=off")
        return find()
    except Exception as error:
        if name not in _lost:
            _lost[name] = lost
            _logger.info("lightning_hooks does without %s (%s: %s): %s", name, type(error).__name__, error, lost)
        raise


def private(name: str, find: Callable[[], T], public: T, lost: str) -> T:
    """Look up and test a private name; if it is absent or behaves differently, log one info line and return the fallback.

    Args:
        name: as listed in docs/support.md.
        find: looks up the name, tests its behaviour and returns the object to use; raises if the name is absent or the test
            fails.
        public: the fallback.
        lost: the consequence of using the fallback, for the log.
    """
    try:
        return tried(name, find, lost)
    except Exception:
        return public


def attribute(holder: Any, name: str, kind: type[T], lost: str) -> T | None:
    """A private attribute of an object if it exists and has the right type; otherwise None, and one info line.

    Args:
        holder: the object.
        name: as listed in docs/support.md, for example `SummaryWriter._get_file_writer`.
        kind: the type that the attribute must have.
        lost: the consequence of its absence, for the log.
    """
    value = None if are_off() else getattr(holder, name.rpartition(".")[2], None)
    if isinstance(value, kind):
        return value

    def raise_absent() -> None:
        raise AttributeError(f"{type(holder).__name__} has no such attribute of type {kind.__name__}")

    private(name, raise_absent, None, lost)
    return None


@cache
def note_newer_torch(version: str) -> None:
    """Log once if torch is newer than the newest tested version; nothing else changes.

    Args:
        version: the version of torch, such as `2.15.0+cpu`.
    """
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers and tuple(map(int, numbers.groups())) > TESTED_TORCH:
        _logger.info(
            "torch %s is newer than %d.%d, the newest that lightning_hooks was tested with; private names that it lacks have "
            "public fallbacks",
            version,
            *TESTED_TORCH,
        )
