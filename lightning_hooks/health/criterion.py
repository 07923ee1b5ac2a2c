"""`Criterion`: what health rules and checks have in common."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, ClassVar, Self

from lightning_hooks.errors import RuleError, shown
from lightning_hooks.rules.fields import as_count


class Criterion:
    """A condition that a healthy training meets. Its own fields are its thresholds.

    A subclass is decorated with `@dataclass(frozen=True, kw_only=True)`. `HealthRule` judges the evidence of a run, `Check` the
    trial of one batch. A rule and a check that look for the same fault have the same name.

    Attributes:
        name: the name of the class.
        needs: what the criterion reads, or cannot do without.
        next_steps: what to try, as imperative sentences.
        source: where the thresholds are from.
        consequence: why a training with the fault is worse, for `lightning-hooks explain`.
        false_alarm: in which healthy trainings the condition may hold, and what is done about that.
        minima: the smallest value of each field that counts something.

    Raises:
        RuleError: the value of a field has another type than the field, or is below its minimum.
    """

    enabled: bool
    name: ClassVar[str] = "Criterion"
    needs: ClassVar[tuple[Any, ...]] = ()
    next_steps: ClassVar[tuple[str, ...]] = ()
    source: ClassVar[str] = ""
    consequence: ClassVar[str] = ""
    false_alarm: ClassVar[str] = ""
    minima: ClassVar[Mapping[str, int]] = {}

    def __init_subclass__(cls) -> None:
        if "name" not in cls.__dict__:
            cls.name = cls.__name__

    def __post_init__(self) -> None:
        untyped: Any = self
        for field in fields(untyped):
            self._check_value(field.name, field.type, getattr(self, field.name))

    @property
    def option_names(self) -> list[str]:
        """The names of what a user may change: the fields."""
        untyped: Any = self
        return [field.name for field in fields(untyped)]

    def with_options(self, options: Mapping[str, Any]) -> Self:
        """A copy in which some options have other values."""
        untyped: Any = self
        copy: Self = replace(untyped, **options)
        return copy

    def _check_value(self, field: str, kind: Any, value: Any) -> None:
        where = f"{self.name}.{field}"
        if field in self.minima:
            as_count(where, value, self.minima[field])
        elif kind in ("float", float) and not _is_number(value):
            raise RuleError(f"{where} must be a number, got {shown(value)}")
        elif kind in ("int", int) and type(value) is not int:
            raise RuleError(f"{where} must be an integer, got {shown(value)}")
        elif kind in ("bool", bool) and not isinstance(value, bool):
            raise RuleError(f"{where} must be True or False, got {shown(value)}")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and not math.isnan(value)
