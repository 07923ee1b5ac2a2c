"""Checks of shares, counts and indices that a user writes, worded as in `_check`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lightning_hooks.errors import RuleError
from lightning_hooks.transforms._check import is_number


def check_share(owner: object, field: str) -> None:
    """Refuse a field that is not at least 0 and below 1.

    Raises:
        RuleError: with the class, the field, what is allowed and the value.
    """
    value = getattr(owner, field)
    # A NaN fails the comparison.
    if not is_number(value) or not 0 <= value < 1:
        raise RuleError(f"{type(owner).__name__}.{field} must be a number of at least 0 and below 1, got {value!r}")


def check_count(owner: object, field: str, at_least: int = 0) -> None:
    """Refuse a field that is not a whole number of at least `at_least`.

    Raises:
        RuleError: with the class, the field, what is allowed and the value.
    """
    value = getattr(owner, field)
    if not is_whole(value) or value < at_least:
        raise RuleError(f"{type(owner).__name__}.{field} must be an integer of at least {at_least}, got {value!r}")


def whole_numbers(owner: object, field: str) -> tuple[int, ...]:
    """The field, one integer or a list of them, as a tuple.

    Raises:
        RuleError: with the class, the field, what is allowed and the value.
    """
    value = getattr(owner, field)
    items: Any = value if isinstance(value, Sequence) and not isinstance(value, str) else (value,)
    if not items or not all(is_whole(item) for item in items):
        raise RuleError(f"{type(owner).__name__}.{field} must be an integer or a list of them, got {value!r}")
    return tuple(items)


def is_whole(value: object) -> bool:
    """Whether a value is an integer; True and False are not."""
    return isinstance(value, int) and not isinstance(value, bool)
