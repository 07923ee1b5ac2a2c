"""The rows of a monitor: one per tap, with what is computed of it and when; and groups of rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from lightning_hooks.engine.shards import is_sharded
from lightning_hooks.rules import PARAM_TENSORS, Watch, parse_tensor
from lightning_hooks.schedule import EveryN
from lightning_hooks.select import Target
from lightning_hooks.stats.custom import UserStatistic
from lightning_hooks.stats.pairs import PAIR_STATS
from lightning_hooks.stats.scalars import MAGNITUDE_STATS, needs_histogram

FLOWING = ("input_grad", "output_grad")
"""The tensors that are multiplied by a loss scale."""


Due = frozenset[EveryN]
"""The schedules that are due at a step."""
Requests = tuple[tuple[EveryN, tuple[str, ...]], ...]
_NO_USERS: Mapping[str, UserStatistic] = {}


@dataclass(slots=True)
class Asked:
    """What rules ask of a row or of a group.

    Args:
        index: its place: rows first, then groups.
        tensor: as the rule wrote it: `grad`, `output[0]`.
        requests: the statistics that rules ask for, each with its schedule; none for what only serves another. The same object
            in all rows of which the same is asked, as are the users: there may be thousands.
        users: the user's own statistics among them, by name.
    """

    index: int
    tensor: str
    requests: Requests = ()
    users: Mapping[str, UserStatistic] = field(default_factory=lambda: _NO_USERS)

    @property
    def name(self) -> str:
        """What its tags call it."""
        raise NotImplementedError

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

    def due(self, schedules: frozenset[EveryN]) -> bool:
        """Whether any rule asks for it when these schedules are due."""
        return any(schedule in schedules for schedule, _ in self.requests)

    def asked(self, schedules: frozenset[EveryN]) -> tuple[str, ...]:
        """The statistics that are written when these schedules are due."""
        return _asked(self.requests, schedules)


@lru_cache(maxsize=1024)
def _asked(requests: Requests, schedules: frozenset[EveryN]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(stat for schedule, stats in requests if schedule in schedules for stat in stats))


@dataclass(slots=True)
class Row(Asked):
    """One tap: a target and one of its tensors.

    A row that a rule only measures for a group has a request without statistics.
    """

    target: Target[Any] = None  # type: ignore[assignment]

    @property
    def name(self) -> str:
        """The dotted name of the target."""
        return self.target.name


@dataclass(slots=True)
class Group(Asked):
    """Rows that a rule merges into one.

    Args:
        called: what the tags call it.
        members: the indices of its rows.
    """

    called: str = ""
    members: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """What the tags call it."""
        return self.called


@dataclass
class Matched:
    """What a rule matched.

    Args:
        rule: the rule.
        rows: its rows.
        groups: its groups, where it merges rows.
    """

    rule: Watch
    rows: list[Row] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)


@dataclass
class Plan:
    """Every row of a monitor.

    Args:
        rows: in the order of the table.
        rules: what each rule matched.
        schedules: of all rules.
        groups: of rows, with the indices that follow theirs.
        param_row_of: of an update row the row of its parameter, of a group of updates the group of these.
    """

    rows: list[Row]
    rules: list[Matched]
    schedules: tuple[EveryN, ...]
    groups: list[Group] = field(default_factory=list)
    param_row_of: dict[int, int] = field(default_factory=dict)

    @property
    def written(self) -> Sequence[Row | Group]:
        """Rows and groups, each at its index."""
        return [*self.rows, *self.groups]

    @property
    def charts(self) -> list[tuple[str, str]]:
        """Tensor and statistic of every chart, each once."""
        return list(dict.fromkeys((row.tensor, stat) for row in self.written for stat in row.stats if stat != "histogram"))

    @property
    def histogram_rows(self) -> tuple[int, ...]:
        """Rows of which a histogram or a quantile is asked, or of whose group one is."""
        return self._rows_with(needs_histogram)

    @property
    def pair_rows(self) -> tuple[int, ...]:
        """Rows of which a pair statistic is asked, or of whose group one is."""
        return self._rows_with(lambda stat: stat in PAIR_STATS)

    @property
    def needs_magnitudes(self) -> bool:
        """Whether any statistic is read from the sums of magnitudes or the counts of underflows."""
        return bool(self._rows_with(lambda stat: stat in MAGNITUDE_STATS))

    @property
    def replicated_rows(self) -> tuple[int, ...]:
        """Rows of parameters, which data-parallel ranks have alike; of a sharded one each rank has another part."""
        return tuple(r.index for r in self.rows if r.kind in PARAM_TENSORS and not is_sharded(r.target.value))

    @property
    def users(self) -> list[tuple[int, UserStatistic]]:
        """The user's own statistics with their rows."""
        own = {(row.index, name): user for row in self.rows for name, user in row.users.items()}
        of_groups = {(i, name): user for group in self.groups for name, user in group.users.items() for i in group.members}
        return [(row, user) for (row, _), user in {**own, **of_groups}.items()]

    def _rows_with(self, wanted: Callable[[str], bool]) -> tuple[int, ...]:
        found = {row.index for row in self.rows if any(map(wanted, row.stats))}
        for group in self.groups:
            if any(map(wanted, group.stats)):
                found.update(group.members)
        return tuple(sorted(found))
