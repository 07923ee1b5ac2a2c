"""The fields of rules: their types, their checks, and a `repr` that is valid code."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from lightning_hooks.errors import RuleError, did_you_mean

if TYPE_CHECKING:  # a rule of names alone needs no torch
    from torch import Tensor
    from torchmetrics import Metric

    Statistic: TypeAlias = Callable[[Tensor], Tensor] | type[Metric]
else:
    Statistic: TypeAlias = Callable[..., Any]

STAGES: Final = ("train", "validate", "test", "predict")

StatSpec: TypeAlias = str | Statistic
"""A statistic: a name (`norm`, `p99`), an import path, a callable `Tensor -> scalar Tensor`, or a class of metrics."""

ScheduleSpec: TypeAlias = int | Sequence[int] | Mapping[str, int | None]
"""A schedule: every how many steps, a list of steps, or a mapping with `first`, `every`, `last`."""

TypeSpec: TypeAlias = str | type[Any]
"""A class of modules: the class, its name, or its import path."""

GroupSpec: TypeAlias = int | str | Sequence[str | tuple[str, str]] | Mapping[str, str]
"""Groups of rows: a depth of the module tree, patterns, or a mapping of names to patterns."""

TransformSpec: TypeAlias = str | Mapping[str, Any] | Callable[..., Any]
"""A transform: itself, its name or import path, or a mapping with `class_path` and `init_args`."""

CallSpec: TypeAlias = str | Mapping[str, Any] | Callable[..., Any]
"""Something to call: itself, its import path, or a mapping with `class_path` and `init_args`."""


def check_one_target(rule: Any) -> None:
    """Refuse a rule that has both `modules` and `params`, or neither.

    Raises:
        RuleError: naming the rule's class.
    """
    if (rule.modules is None) == (rule.params is None):
        have = "both" if rule.modules is not None else "neither"
        raise RuleError(f"modules: {type(rule).__name__} needs exactly one of modules and params, got {have}")


def normalise(rule: Any, *fields: str) -> None:
    """Make lists tuples, so that equal rules compare equal and cannot change later; one pattern stays a string.

    Args:
        rule: a frozen dataclass.
        fields: the names of its fields that hold one value or several.

    Raises:
        RuleError: an empty list of patterns, or a name that is not a string.
    """
    for field in fields:
        value = getattr(rule, field)
        if value is None or (isinstance(value, str) and field in ("modules", "params")):
            continue
        if isinstance(value, Sequence) and not isinstance(value, str):
            value = tuple(value)
        else:
            value = (value,)
        if field in ("modules", "params", "tensors", "stages"):
            for i, item in enumerate(value):
                if not isinstance(item, str):
                    raise RuleError(f"{field}[{i}] must be a string, got {item!r}")
            if field in ("modules", "params") and not value:
                raise RuleError(f"{field} is an empty list; give at least one pattern")
        object.__setattr__(rule, field, value)


def check_flags(rule: Any) -> None:
    """Refuse anything but True and False in the fields whose default is one of them: `"false"` counts as true.

    Raises:
        RuleError: naming the field and the value.
    """
    for field in dataclasses.fields(rule):
        if isinstance(field.default, bool):
            check_flag(field.name, getattr(rule, field.name))


def check_flag(name: str, value: Any) -> None:
    """Refuse anything but True and False.

    Raises:
        RuleError: naming the option and the value.
    """
    if not isinstance(value, bool):
        raise RuleError(f"{name} must be True or False (in YAML true or false, without quotes), got {value!r}")


def check_types(types: Any) -> None:
    """Refuse types that are neither classes nor names.

    Args:
        types: a tuple, or None for all.

    Raises:
        RuleError: naming the value.
    """
    if types is None:
        return
    if not types:
        raise RuleError("types is an empty list; give at least one class, or omit it for all")
    for i, item in enumerate(types):
        if not isinstance(item, (str, type)):
            raise RuleError(f"types[{i}] must be a class, a class name or an import path, got {item!r}")


def as_stages(stages: Any) -> tuple[str, ...]:
    """The stages of a callback, from one or several.

    Raises:
        RuleError: an unknown stage, or no stage.
    """
    several = isinstance(stages, Sequence) and not isinstance(stages, str)
    found = tuple(stages) if several else (stages,)
    if stages is None:
        check_stages(None)
    check_stages(found)
    return found


def check_stages(stages: Sequence[str] | None) -> None:
    """Refuse an unknown stage, or no stage.

    Raises:
        RuleError: with the valid stages.
    """
    if stages is None:
        raise RuleError(f"stages must be one or more of {', '.join(STAGES)}, got None; omit it for the default")
    if not stages:
        raise RuleError(f"stages is empty; give at least one of {', '.join(STAGES)}")
    for i, stage in enumerate(stages):
        if stage not in STAGES:
            hint = did_you_mean(str(stage), STAGES, 1)
            raise RuleError(f"stages[{i}] must be one of {', '.join(STAGES)}, got {stage!r}{hint}")


def short_repr(rule: Any, *implied: str) -> str:
    """The fields that differ from their defaults; classes and functions by the import path that a rule accepts for them.

    Args:
        rule: a dataclass.
        implied: fields whose value follows from the others.
    """
    shown = [
        f"{field.name}={_typed(getattr(rule, field.name))}"
        for field in dataclasses.fields(rule)
        if field.init and field.name not in implied and getattr(rule, field.name) != field.default
    ]
    return f"{type(rule).__name__}({', '.join(shown)})"


def _typed(value: Any) -> str:
    """The `repr` of a value; of a class or a function its import path, where that leads back to it."""
    if type(value) is tuple:
        return f"({', '.join(map(_typed, value))}{',' if len(value) == 1 else ''})"
    if not repr(value).startswith("<"):  # is valid code
        return repr(value)
    name = getattr(value, "__qualname__", None)
    module = sys.modules.get(getattr(value, "__module__", None) or "")
    if not isinstance(name, str) or module is None or module.__name__ == "__main__":
        return repr(value)
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    return repr(f"{module.__name__}.{name}") if found is value else repr(value)
