"""Rows of a plan: a target, one of its tensors, and the statistics that rules request of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from lightning_hooks.rules import parse_tensor
from lightning_hooks.rules.patterns import Target
from lightning_hooks.rules.schedule import EveryN
from lightning_hooks.stats.units.spec import UnitSpec
from lightning_hooks.stats.user_statistics import UserStatistic

Due = frozenset[EveryN]
"""The schedules that are due at a step."""
Requests = tuple[tuple[EveryN, tuple[str, ...]], ...]
"""Statistics that rules ask for, each with its schedule."""

_NO_USERS: Mapping[str, UserStatistic] = {}


@lru_cache(maxsize=1024)
def requested(requests: Requests, due: Due) -> tuple[str, ...]:
    """The statistics that are written when these schedules are due, each once."""
    return tuple(dict.fromkeys(stat for schedule, stats in requests if schedule in due for stat in stats))


@dataclass(slots=True)
class Row:
    """A target and one of its tensors, or a group: rows that a rule merges into one.

    Args:
        index: in the table; those of groups follow those of rows.
        tensor: as the rule wrote it: `grad`, `output[0]`.
        requests: the statistics that rules ask for, each with its schedule. Empty if only another row needs it; a row that is
            only measured for a group has a request without statistics.
        users: the user's own statistics among them, by name.
        target: the module or parameter; None for a group.
        group: the name of a group; empty for a row.
        units: how its units are measured; None where no rule asks for them.
        members: of a group, the indices of its rows.
    """

    index: int
    tensor: str
    requests: Requests = ()
    users: Mapping[str, UserStatistic] = field(default_factory=lambda: _NO_USERS)
    target: Target[Any] = None  # type: ignore[assignment]
    group: str = ""
    members: tuple[int, ...] = ()
    units: UnitSpec | None = None

    @property
    def name(self) -> str:
        """Its name in tags."""
        return self.group or self.target.name

    @property
    def kind(self) -> str:
        """The tensor without the path to a part of it."""
        return parse_tensor(self.tensor)[0]

    @property
    def path(self) -> str:
        """The path to the part that is seen; empty for all of it."""
        return parse_tensor(self.tensor)[1]

    @property
    def stats(self) -> tuple[str, ...]:
        """Every statistic that any rule asks of it, in order, once."""
        return tuple(dict.fromkeys(stat for _, stats in self.requests for stat in stats))

    def due(self, schedules: Due) -> bool:
        """Whether any rule asks for it when these schedules are due."""
        return any(schedule in schedules for schedule, _ in self.requests)
