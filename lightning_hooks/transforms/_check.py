"""Checks of the numbers a user writes, with one wording for all transforms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real
from typing import Any

from lightning_hooks.errors import RuleError
from lightning_hooks.rules.fields import as_count


def is_number(value: object) -> bool:
    """Whether a value is a real number; True and False are not."""
    return isinstance(value, Real) and not isinstance(value, bool)


def is_finite(value: Any) -> bool:
    """Whether a value is a number, and neither NaN nor infinite."""
    return is_number(value) and math.isfinite(value)


def is_whole(value: object) -> bool:
    """Whether a value is an integer; True and False are not."""
    return isinstance(value, int) and not isinstance(value, bool)


def check_finite(owner: object, field: str, *, above: float | None = None, at_least: float | None = None) -> None:
    """Refuse a field that is not a finite number within its bounds.

    Raises:
        RuleError: with the class, the field, what is allowed and the value.
    """
    value = getattr(owner, field)
    good = is_finite(value)
    good = good and (above is None or value > above) and (at_least is None or value >= at_least)
    if not good:
        bound = "" if above is None else f" above {above:g}"
        bound += "" if at_least is None else f" of at least {at_least:g}"
        raise RuleError(f"{type(owner).__name__}.{field} must be a finite number{bound}, got {value!r}")


def check_norm_type(owner: object) -> None:
    """Refuse a `norm_type` that is not the order of a norm: above 0, infinity included.

    Raises:
        RuleError: with the class, the field, what is allowed and the value.
    """
    value = owner.norm_type  # type: ignore[attr-defined]
    # A NaN fails the comparison.
    if not is_number(value) or not value > 0:
        raise RuleError(f"{type(owner).__name__}.norm_type must be a number above 0 or infinity, got {value!r}")


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
    as_count(f"{type(owner).__name__}.{field}", getattr(owner, field), at_least)


def check_flag(owner: object, field: str) -> None:
    """Refuse a field that is not True or False.

    Raises:
        RuleError: with the class, the field and the value.
    """
    value = getattr(owner, field)
    if not isinstance(value, bool):
        raise RuleError(f"{type(owner).__name__}.{field} must be True or False, got {value!r}")


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
