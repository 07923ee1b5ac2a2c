"""Private names of torch, Lightning and TensorBoard: each is tried before it is used, and has a public way as its fallback.

docs/support.md lists them with what is lost without each. `LIGHTNING_HOOKS_PRIVATE_NAMES=off` treats them all as absent. This
module knows none of the libraries, so that reading a run loads none of them.
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
"""The private names that were looked for and cannot be used in this process, each with what is lost."""


@cache
def are_off() -> bool:
    """Whether private names are treated as absent."""
    return os.environ.get(VARIABLE, "") == "off"


def tried(name: str, find: Callable[[], T], lost: str) -> T:
    """As `private`, for a caller with a fallback of its own: raises what `find` raised."""
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
    """What a private name stands for, if it does what it is used for; else the public fallback, and one info line.

    Args:
        name: as docs/support.md lists it.
        find: tries it and returns what is to be used; raises where it is absent or does something else.
        public: the fallback.
        lost: with the fallback, in words.
    """
    try:
        return tried(name, find, lost)
    except Exception:
        return public


def attribute(holder: Any, name: str, kind: type[T], lost: str) -> T | None:
    """A private attribute of an object if it is there and of a type, else None, and one info line.

    Args:
        holder: the object.
        name: as docs/support.md lists it, `SummaryWriter._get_file_writer`.
        kind: the type that makes it usable.
        lost: without it, in words.
    """
    value = None if are_off() else getattr(holder, name.rpartition(".")[2], None)
    if isinstance(value, kind):
        return value

    def absent() -> None:
        raise AttributeError(f"{type(holder).__name__} has none that is of type {kind.__name__}")

    private(name, absent, None, lost)
    return None


@cache
def note_newer_torch(version: str) -> None:
    """Say once that a torch is newer than those that were tested; it is used like them.

    Args:
        version: of torch.
    """
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers and tuple(map(int, numbers.groups())) > TESTED_TORCH:
        _logger.info(
            "torch %s is newer than %d.%d, the newest that lightning_hooks was tested with; private names that it lacks have "
            "public fallbacks",
            version,
            *TESTED_TORCH,
        )
