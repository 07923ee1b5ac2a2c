"""The fields of rules: their types, their checks, and a `repr` that is valid code.

Every check raises a `RuleError` that names the option and the value.
"""

from __future__ import annotations

import dataclasses
import errno
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from lightning_hooks.errors import RuleError, did_you_mean, shown

# Do not import torch at run time: a rule that holds only names must not load it.
if TYPE_CHECKING:
    from torch import Tensor
    from torchmetrics import Metric

    Statistic: TypeAlias = Callable[[Tensor], Tensor] | type[Metric]
else:
    Statistic: TypeAlias = Callable[..., Any]

SELECT: Final = ("all", "leaves", "layers")
"""Which of the modules that match a rule selects."""
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
"""A transform: an object, a name or import path, or a mapping with `class_path` and `init_args`."""

CallSpec: TypeAlias = str | Mapping[str, Any] | Callable[..., Any]
"""A callable: the object, its import path, or a mapping with `class_path` and `init_args`."""

EXPRESSION: Final = "re:"
"""The prefix of a pattern that is a regular expression."""
_PATTERNS: Final = ("modules", "params")
_NAMES: Final = (*_PATTERNS, "tensors", "stages")
_SEVERAL: Final = (*_NAMES, "types", "stats")
# Match a single slash after the colon, because `Path("s3://bucket")` becomes `s3:/bucket`.
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
_LONGEST_NAME: Final = 255  # bytes: the longest file name in nearly all file systems
_EMPTY: Final = {
    **dict.fromkeys(_PATTERNS, "an empty list; give at least one pattern"),
    "types": "an empty list; give at least one class, or omit it for all",
    "tensors": "empty; name at least one tensor or omit it",
    "stats": "empty; name at least one statistic or omit it",
}


def check_one_target(rule: Any) -> None:
    """Raise unless the rule has exactly one of `modules` and `params`."""
    if (rule.modules is None) == (rule.params is None):
        have = "both" if rule.modules is not None else "neither"
        raise RuleError(f"modules: {type(rule).__name__} needs exactly one of modules and params, got {have}")


def normalise(rule: Any) -> None:
    """Check the fields that all rules have, and turn lists into tuples, so that rules compare by value and cannot change.

    A single pattern stays a string. Flags must be True or False, because a string such as `"false"` is true in Python.
    """
    for field in dataclasses.fields(rule):
        name, value = field.name, getattr(rule, field.name)
        if isinstance(field.default, bool):
            check_flag(name, value)
        if name not in _SEVERAL or value is None or (name in _PATTERNS and isinstance(value, str)):
            continue
        value = tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else (value,)
        if name in _NAMES:
            for i, item in enumerate(value):
                if not isinstance(item, str):
                    raise RuleError(f"{name}[{i}] must be a string, got {shown(item)}")
        if not value and name in _EMPTY:
            raise RuleError(f"{name} is {_EMPTY[name]}")
        object.__setattr__(rule, name, tuple(dict.fromkeys(value)) if name == "tensors" else value)
    for name in _PATTERNS:
        value = getattr(rule, name)
        check_expressions(name, [value] if isinstance(value, str) else value or ())
    for i, item in enumerate(rule.types or ()):
        if not isinstance(item, (str, type)):
            raise RuleError(f"types[{i}] must be a class, a class name or an import path, got {shown(item)}")


def check_flag(name: str, value: Any) -> None:
    """Raise unless the value is True or False."""
    if not isinstance(value, bool):
        raise RuleError(f"{name} must be True or False (in YAML true or false, without quotes), got {shown(value)}")


def check_select(rule: Any) -> None:
    """Raise unless `select` of a rule is `all`, `leaves` or `layers`, and `all` if the rule is not on modules."""
    if rule.select not in SELECT:
        raise RuleError(f"select must be one of {', '.join(SELECT)}, got {shown(rule.select)}")
    if rule.select != "all" and rule.modules is None:
        raise RuleError(f"select={rule.select!r} goes with modules")


def as_count(name: str, value: Any, at_least: int = 0) -> int:
    """The value, if it is an integer (not a bool) of at least `at_least` that fits into 64 bits; otherwise raise."""
    if isinstance(value, bool) or not isinstance(value, int) or not at_least <= value < 2**63:
        below = " and below 2**63" if isinstance(value, int) and value >= 2**63 else ""
        raise RuleError(f"{name} must be an integer of at least {at_least}{below}, got {shown(value)}")
    return value


def check_local(name: str, folder: Any, instead: str) -> None:
    """Raise unless a folder is a path on this machine: `Path` would turn `s3://…` into a local folder of that name.

    Args:
        name: the name of the option.
        folder: the value of the option, of any type; None for no folder.
        instead: advice for the message if the folder is a URL.
    """
    if folder is None:
        return
    path = os.fspath(folder) if isinstance(folder, (str, os.PathLike)) else None
    if not isinstance(path, str) or not path:
        raise RuleError(f"{name} must be the path of a folder, got {shown(folder)}")
    check_path(name, path)
    if _URL.match(str(folder)):
        raise RuleError(f"{name} must be a folder of this machine, got {shown(str(folder))}; {instead}")


def check_path(name: str, path: str | os.PathLike[str]) -> None:
    """Raise unless the value is a path that a file can have: without NUL characters, and not too long for this machine."""
    if not isinstance(path, (str, os.PathLike)) or not isinstance(os.fspath(path), str):
        raise RuleError(f"{name} must be a path, got {shown(path)}")
    try:
        os.lstat(path)
    except ValueError as error:
        raise RuleError(f"{name} must be a path without NUL characters, got {shown(path)}") from error
    except OSError as error:
        too_long = error.errno == errno.ENAMETOOLONG
        # lstat stops at the first folder that does not exist, so check here that the later parts of the path are not too long.
        if too_long or any(len(os.fsencode(part)) > _LONGEST_NAME for part in Path(path).parts):
            raise RuleError(f"{name} must be a path that is short enough for this machine, got {shown(path)}") from error


def check_expressions(name: str, patterns: Iterable[str]) -> None:
    """Raise if a pattern that begins with `re:` or `!re:` is not a valid regular expression."""
    for pattern in patterns:
        expression = pattern.removeprefix("!")
        if expression.startswith(EXPRESSION):
            try:
                re.compile(expression.removeprefix(EXPRESSION))
            # A repeat count such as a{1,99999999999} raises OverflowError, and thousands of nested groups raise RecursionError.
            except (re.error, OverflowError, RecursionError) as error:
                reason = "it is nested too deep" if isinstance(error, RecursionError) else error
                raise RuleError(f"{name}: {shown(expression)} is not a valid regular expression ({reason})") from error


def as_patterns(name: str, patterns: Any) -> list[str]:
    """One or several patterns as a list; an empty list for None."""
    values = [patterns] if isinstance(patterns, str) else [] if patterns is None else patterns
    if not isinstance(values, Sequence) or isinstance(values, bytes):
        raise RuleError(f"{name} must be a pattern or a list of patterns, got {shown(patterns)}")
    for i, pattern in enumerate(values):
        if not isinstance(pattern, str):
            raise RuleError(f"{name}[{i}] must be a string, got {shown(pattern)}")
    check_expressions(name, values)
    return list(values)


def as_stages(stages: Any) -> tuple[str, ...]:
    """One or several stages as a tuple."""
    is_list = isinstance(stages, Sequence) and not isinstance(stages, str)
    values = tuple(stages) if is_list else (stages,)
    check_stages(None if stages is None else values)
    return values


def check_stages(stages: Sequence[str] | None) -> None:
    """Raise if a stage is unknown, or if there is none."""
    if stages is None:
        raise RuleError(f"stages must be one or more of {', '.join(STAGES)}, got None; omit it for the default")
    if not stages:
        raise RuleError(f"stages is empty; give at least one of {', '.join(STAGES)}")
    for i, stage in enumerate(stages):
        if stage not in STAGES:
            hint = did_you_mean(stage, STAGES, 1)
            raise RuleError(f"stages[{i}] must be one of {', '.join(STAGES)}, got {shown(stage)}{hint}")


def short_repr(rule: Any, *implied: str) -> str:
    """The `repr` of a rule: the fields that differ from their defaults, with import paths for classes and functions.

    Args:
        rule: a dataclass.
        implied: names of fields to omit, because other fields determine their value.
    """
    shown = [
        f"{field.name}={typed(getattr(rule, field.name))}"
        for field in dataclasses.fields(rule)
        if field.init and field.name not in implied and getattr(rule, field.name) != field.default
    ]
    return f"{type(rule).__name__}({', '.join(shown)})"


def typed(value: Any) -> str:
    """The `repr` of a value, with import paths for classes and functions that can be imported from there."""
    if type(value) is tuple:
        return f"({', '.join(map(typed, value))}{',' if len(value) == 1 else ''})"
    if "<" in repr(value) and dataclasses.is_dataclass(value) and not isinstance(value, type):
        shown = (f"{each.name}={typed(getattr(value, each.name))}" for each in dataclasses.fields(value) if each.repr)
        return f"{type(value).__name__}({', '.join(shown)})"
    # If the `repr` does not start with "<", assume that it is valid code.
    if not repr(value).startswith("<"):
        return repr(value)
    name = getattr(value, "__qualname__", None)
    module = sys.modules.get(getattr(value, "__module__", None) or "")
    if not isinstance(name, str) or module is None or module.__name__ == "__main__":
        return repr(value)
    imported: Any = module
    for part in name.split("."):
        imported = getattr(imported, part, None)
    return repr(f"{module.__name__}.{name}") if imported is value else repr(value)
