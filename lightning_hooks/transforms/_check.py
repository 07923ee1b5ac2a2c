"""Checks of the numbers a user writes, with one wording for all transforms."""

from __future__ import annotations

import math
from numbers import Real

from lightning_hooks.errors import RuleError


def is_number(value: object) -> bool:
    """Whether a value is a real number; True and False are not."""
    return isinstance(value, Real) and not isinstance(value, bool)


def check_finite(owner: object, field: str, *, above: float | None = None, at_least: float | None = None) -> None:
    """Refuse a field that is not a finite number within its bounds.

    Args:
        owner: the object that holds the field.
        field: the name of the field.
        above: the value must be greater than this; no bound by default.
        at_least: the value must not be less than this; no bound by default.

    Raises:
        RuleError: with the class, the field, what is allowed and the value.
    """
    value = getattr(owner, field)
    good = is_number(value) and math.isfinite(value)
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
