"""Rows of a plan: each is a tensor of a module or parameter, with the statistics that rules request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from lightning_hooks.rules import parse_tensor
from lightning_hooks.rules.patterns import Target
from lightning_hooks.rules.schedule import EveryN
from lightning_hooks.stats.units.spec import UnitSpec
from lightning_hooks.stats.user_statistics import UserStatistic


@dataclass(frozen=True)
class Demand(EveryN):
    """A schedule of one owner of a table, to which several owners may address requests for the same row.

    Args:
        owner: the number of the owner.
    """

    owner: int = 0

    @classmethod
    def of(cls, owner: int, schedule: EveryN) -> Demand:
        """The demand of an owner at a schedule."""
        return cls(schedule.every, schedule.first, schedule.last, schedule.steps, owner)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "_hash", hash((self.owner, self.__dict__["_hash"])))

    __hash__ = EveryN.__hash__  # otherwise the decorator makes one that hashes every field at each call


Due = frozenset[EveryN]
"""The schedules that are due at a step; in a table, the demands."""
Requests = tuple[tuple[EveryN, tuple[str, ...]], ...]
"""Statistics that rules request, by schedule: pairs of a schedule and names of statistics."""
LOSS: Final = "loss"
"""The name and the tensor of the row of the loss, which no rule requests: a monitor measures it at every watched step."""
GRADIENT: Final = "gradient"
"""The name and the tensor of the row of the whole gradient: its norm at the steps at which no rule measures gradients."""
BATCH: Final = "batch"
"""The name and the tensor of the row of the batch of a Trainer: all its tensors of real numbers together."""
WHOLE: Final = (LOSS, GRADIENT, BATCH)
"""The tensors that belong to the whole step, and to no module and no parameter."""
EVERY_STEP: Final = EveryN()
"""The schedule of these rows, if they are measured at every step."""
ONLY_EVERY_STEP: Final[Due] = frozenset({EVERY_STEP})
"""What is due at a step between two at which other rows are measured."""

_NO_USERS: Mapping[str, UserStatistic] = {}


@lru_cache(maxsize=1024)
def requested(requests: Requests, due: Due) -> tuple[str, ...]:
    """The statistics that are requested when these schedules are due, without duplicates."""
    return tuple(dict.fromkeys(stat for schedule, stats in requests if schedule in due for stat in stats))


@dataclass(slots=True)
class Row:
    """One tensor of a module or parameter, or a group of such rows that a rule merges.

    Args:
        index: the position in the table; groups follow after all rows.
        tensor: the name of the tensor as the rule has it: `grad`, `output[0]`.
        requests: the statistics that rules request, by schedule. Empty for a parameter that is measured only for the `ratio` of
            its update. A row that is measured only for a group has a schedule without statistics.
        users: the user's own statistics among the requested ones, by name.
        target: the module or parameter; None for a group.
        group: the name of a group; empty for a row.
        units: how the units of the tensor are measured; None if no rule requests statistics of units.
        members: the indices of the rows that a group merges; empty for a row.
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
        """The name of the module, parameter or group in tags."""
        return self.group or self.target.name

    @property
    def kind(self) -> str:
        """The name of the tensor without a path: `output` of `output[0]`."""
        return parse_tensor(self.tensor)[0]

    @property
    def path(self) -> str:
        """The path to the part of the tensor that is watched, `[0]` of `output[0]`; empty for the whole tensor."""
        return parse_tensor(self.tensor)[1]

    @property
    def stats(self) -> tuple[str, ...]:
        """The statistics that any rule requests, in the order of the rules, without duplicates."""
        return tuple(dict.fromkeys(stat for _, stats in self.requests for stat in stats))

    @property
    def measured(self) -> tuple[int, ...]:
        """The indices of the rows whose tensors are measured for it: those that a group merges, or its own."""
        return self.members or (self.index,)

    def due(self, schedules: Due) -> bool:
        """Whether a rule requests the row when these schedules are due."""
        # A loop is faster than `any`: a plan asks this of all its rows.
        for schedule, _ in self.requests:  # noqa: SIM110
            if schedule in schedules:
                return True
        return False
