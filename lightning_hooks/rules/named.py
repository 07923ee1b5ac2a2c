"""Rules and checks that a user names: the one of a name, and one with changed fields."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import Any, TypeVar

from lightning_hooks.errors import RuleError, did_you_mean, shown

T = TypeVar("T")


def known_name(name: Any, known: Iterable[str], where: str, what: str) -> str:
    """A name, if it is one of the known ones.

    Args:
        name: as given, of any type.
        known: the names.
        where: a prefix of the message.
        what: what has these names, for the message.

    Raises:
        RuleError: it is none of them.
    """
    names = list(known)
    if name not in names:
        raise RuleError(f"{where}: there is no {what} {shown(name)}{did_you_mean(name, names)}")
    return str(name)


def with_changes(item: T, changes: Any, where: str) -> T:
    """A copy of a frozen dataclass with a field `enabled`, with changed fields.

    Args:
        item: the dataclass.
        changes: True or False for `enabled`, or fields by name, which also switch it on.
        where: a prefix of messages.

    Raises:
        RuleError: an unknown field, or a value that the dataclass refuses.
    """
    untyped: Any = item
    if isinstance(changes, bool):
        changed: T = replace(untyped, enabled=changes)
        return changed
    if not isinstance(changes, Mapping):
        raise RuleError(f"{where} must be a mapping of fields, True or False, got {shown(changes)}")
    names = [field.name for field in fields(untyped)]
    for name in changes:
        if name not in names:
            raise RuleError(f"{where}: unknown field {shown(name)}{did_you_mean(name, names)}; there are {', '.join(names)}")
    try:
        changed = replace(untyped, **{"enabled": True, **changes})
    except RuleError as error:
        raise RuleError(f"{where}: {error}") from error
    return changed
