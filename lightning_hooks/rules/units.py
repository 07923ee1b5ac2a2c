"""`Units`: how a `Watch` rule measures the units of a tensor (channels, features, heads, experts)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, fields
from typing import Any

from lightning_hooks.errors import RuleError, did_you_mean, shown
from lightning_hooks.rules.fields import as_count, check_flag, short_repr

MOST_DIMENSIONS = 64  # of a tensor, in torch


@dataclass(frozen=True)
class Units:
    """The measurement of units, for `Watch(units=…)`.

    Args:
        axis: the dimension of the units; None (default) to determine it from the class of the module.
        heads: merge neighbouring units into this number of groups, such as the heads of an attention layer; default: no groups.
        vectors: whether each unit has curves of its own on the page; default False.

    Raises:
        RuleError: a field has an invalid value.

    Example:
        >>> Units(1, vectors=True)
        Units(axis=1, vectors=True)
    """

    axis: int | None = None
    _: KW_ONLY
    heads: int | None = None
    vectors: bool = False

    def __post_init__(self) -> None:
        """Check the fields."""
        if self.axis is not None and (isinstance(self.axis, bool) or not isinstance(self.axis, int)):
            raise RuleError(f"axis must be the dimension of the units, got {shown(self.axis)}")
        if self.axis is not None and not -MOST_DIMENSIONS <= self.axis < MOST_DIMENSIONS:
            raise RuleError(
                f"axis must be a dimension, from -{MOST_DIMENSIONS} to {MOST_DIMENSIONS - 1}, got {shown(self.axis)}"
            )
        if self.heads is not None:
            as_count("heads", self.heads, 1)
        check_flag("vectors", self.vectors)

    def __repr__(self) -> str:
        """The fields that differ from their defaults."""
        return short_repr(self)


def as_units(value: Any) -> Any:
    """The value of the option `units` of a rule: `auto`, `Units`, or None; a mapping, as in YAML, becomes `Units`.

    Raises:
        RuleError: anything else, or an invalid field.
    """
    if value is None or value == "auto" or isinstance(value, Units):
        return value
    if not isinstance(value, Mapping):
        hint = f"; write Units(axis={value!r})" if isinstance(value, int) and not isinstance(value, bool) else ""
        raise RuleError(f"units must be 'auto', Units or a mapping with axis, heads, vectors, got {shown(value)}{hint}")
    names = [field.name for field in fields(Units)]
    given = {str(key): item for key, item in value.items() if key != "_target_"}
    for key in given:
        if key not in names:
            raise RuleError(f"units: unknown key {key!r}{did_you_mean(key, names)}; Units has {', '.join(names)}")
    try:
        return Units(**given)
    except RuleError as error:
        raise RuleError(f"units.{error}") from error
