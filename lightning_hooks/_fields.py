"""What the rules share: checks of their fields, and a `repr` that can be typed back in."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Final

from lightning_hooks.errors import RuleError, did_you_mean

STAGES: Final = ("train", "validate", "test", "predict")


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
        RuleError: an empty list of patterns, or a name that is no string.
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


def check_stages(stages: Sequence[str], known: Sequence[str] = STAGES) -> None:
    """Refuse a stage that there is not, or no stage at all.

    Raises:
        RuleError: with the stages there are.
    """
    if not stages:
        raise RuleError(f"stages is empty; give at least one of {', '.join(known)}")
    for i, stage in enumerate(stages):
        if stage not in known:
            hint = did_you_mean(str(stage), known, 1)
            raise RuleError(f"stages[{i}] must be one of {', '.join(known)}, got {stage!r}{hint}")


def short_repr(rule: Any, *implied: str) -> str:
    """The fields that differ from their defaults.

    Args:
        rule: a dataclass.
        implied: fields whose value follows from the others.
    """
    shown = [
        f"{field.name}={getattr(rule, field.name)!r}"
        for field in dataclasses.fields(rule)
        if field.init and field.name not in implied and getattr(rule, field.name) != field.default
    ]
    return f"{type(rule).__name__}({', '.join(shown)})"
