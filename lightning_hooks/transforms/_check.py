"""Checks of the fields that a user sets, with the same messages for all transforms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real
from typing import Any, Final

from lightning_hooks.errors import RuleError, shown
from lightning_hooks.rules.fields import as_count

GREATEST: Final = 3.4028234663852886e38
"""The greatest finite number of float32."""


def is_number(value: object) -> bool:
    """Whether a value is a real number; True and False are not."""
    return isinstance(value, Real) and not isinstance(value, bool)


def is_finite(value: Any) -> bool:
    """Whether a value is a number that a float can hold, and neither NaN nor infinite."""
    try:
        return is_number(value) and math.isfinite(value)
    except OverflowError:
        # The integer is beyond the range of a float.
        return False


def is_whole(value: object) -> bool:
    """Whether a value is an integer that fits into 64 bits; True and False are not."""
    return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63


def check_finite(owner: object, field: str, *, above: float | None = None, at_least: float | None = None) -> None:
    """Raise if a field is not a finite number within its bounds; turn an integer that is too large for torch into a float.

    Raises:
        RuleError: the message names the class, the field, the allowed values and the value.
    """
    value = getattr(owner, field)
    is_valid = is_finite(value)
    is_valid = is_valid and (above is None or value > above) and (at_least is None or value >= at_least)
    if not is_valid:
        bound = "" if above is None else f" above {above:g}"
        bound += "" if at_least is None else f" of at least {at_least:g}"
        raise RuleError(f"{type(owner).__name__}.{field} must be a finite number{bound}{_in_range(value)}, got {shown(value)}")
    _set_float(owner, field, value)


def check_factor(owner: object, field: str, *, above: float | None = None, at_least: float | None = None) -> None:
    """As `check_finite`, but raise also if the field overflows float32: tensors are multiplied by or compared with it.

    Raises:
        RuleError: the message names the class, the field, the allowed values and the value.
    """
    check_finite(owner, field, above=above, at_least=at_least)
    value = getattr(owner, field)
    if abs(value) > GREATEST:
        raise RuleError(
            f"{type(owner).__name__}.{field} must be finite in float32, whose greatest number is {GREATEST:g}, "
            f"got {shown(value)}"
        )


def check_norm_type(owner: object) -> None:
    """Raise if `norm_type` is not the order of a norm: a number above 0, or infinity.

    Raises:
        RuleError: the message names the class, the field, the allowed values and the value.
    """
    value = owner.norm_type  # type: ignore[attr-defined]
    # Write `not value > 0` instead of `value <= 0`, so that a NaN is refused too.
    if not is_number(value) or not value > 0 or not (value == math.inf or is_finite(value)):
        expected = f"a number above 0{_in_range(value)} or infinity"
        raise RuleError(f"{type(owner).__name__}.norm_type must be {expected}, got {shown(value)}")
    _set_float(owner, "norm_type", value)


def _in_range(value: object) -> str:
    """The part of a message about an integer that is beyond the range of a float; empty for any other value."""
    return " that a float can hold" if isinstance(value, int) and not is_finite(value) and is_number(value) else ""


def _set_float(owner: object, field: str, value: Any) -> None:
    if isinstance(value, int) and not is_whole(value):
        # Setting an attribute of a frozen dataclass raises, so call the method of `object`.
        object.__setattr__(owner, field, float(value))


def check_share(owner: object, field: str) -> None:
    """Raise if a field is not a number of at least 0 and below 1.

    Raises:
        RuleError: the message names the class, the field, the allowed values and the value.
    """
    value = getattr(owner, field)
    # A NaN makes the comparison False, so it is refused too.
    if not is_number(value) or not 0 <= value < 1:
        raise RuleError(f"{type(owner).__name__}.{field} must be a number of at least 0 and below 1, got {shown(value)}")


def check_count(owner: object, field: str, at_least: int = 0) -> None:
    """Raise if a field is not an integer of at least `at_least`.

    Raises:
        RuleError: the message names the class, the field, the allowed values and the value.
    """
    as_count(f"{type(owner).__name__}.{field}", getattr(owner, field), at_least)


def check_flag(owner: object, field: str) -> None:
    """Raise if a field is not True or False.

    Raises:
        RuleError: the message names the class, the field and the value.
    """
    value = getattr(owner, field)
    if not isinstance(value, bool):
        raise RuleError(f"{type(owner).__name__}.{field} must be True or False, got {shown(value)}")


def whole_numbers(owner: object, field: str) -> tuple[int, ...]:
    """The field as a tuple; it must be one integer or a list of integers.

    Raises:
        RuleError: the message names the class, the field, the allowed values and the value.
    """
    value = getattr(owner, field)
    items: Any = value if isinstance(value, Sequence) and not isinstance(value, str) else (value,)
    if not items or isinstance(value, bytes) or not all(is_whole(item) for item in items):
        raise RuleError(f"{type(owner).__name__}.{field} must be an integer or a list of them, got {shown(value)}")
    return tuple(items)
