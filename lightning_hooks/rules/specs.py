"""The types of what a user writes into rules, for annotations; values are checked when a rule is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:  # a rule of names alone needs no torch
    from torch import Tensor
    from torchmetrics import Metric

    Statistic: TypeAlias = Callable[[Tensor], Tensor] | type[Metric]
else:
    Statistic: TypeAlias = Callable[..., Any]

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
