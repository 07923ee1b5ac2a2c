"""What users wrote: functions and metrics as statistics, and accumulators, each under a name of its own."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from types import MethodType
from typing import Any

from lightning_hooks.errors import RuleError
from lightning_hooks.rules.importing import import_object
from lightning_hooks.rules.reading import as_object
from lightning_hooks.rules.statistics import is_known
from lightning_hooks.stats.accumulators import BUILT_IN, Accumulator
from lightning_hooks.stats.user_statistics import UserStatistic


@dataclass
class Own:
    """What users wrote, of all rules so far, by name.

    Args:
        statistics: functions and metrics.
        accumulators: of classes that users wrote.
    """

    statistics: dict[str, UserStatistic] = field(default_factory=dict)
    accumulators: dict[str, Accumulator] = field(default_factory=dict)

    def add_accumulator(self, accumulator: Accumulator, where: str) -> tuple[str, ...]:
        """Add an accumulator; returns the statistics that follow from what it keeps.

        Raises:
            RuleError: the name of the accumulator or of a statistic is taken.
        """
        if self.accumulators.setdefault(accumulator.name, accumulator) != accumulator:
            raise RuleError(f"{where}: another accumulator is called {accumulator.name!r}; give one of them another name")
        for stat in accumulator.statistics:
            others = [each.name for each in self.accumulators.values() if each != accumulator and each.serves(stat)]
            if others or stat in self.statistics or is_known(stat) or stat == "count":
                raise RuleError(f"{where}: {accumulator!r} cannot have a statistic {stat!r}: the name is taken")
        return accumulator.statistics

    def add_statistic(self, user: UserStatistic) -> UserStatistic:
        """Add a function or metric; returns it under a name of its own: `name`, `name_2`, … in the order of the rules."""
        for number in itertools.count(1):
            name = user.name if number == 1 else f"{user.name}_{number}"
            if any(each.serves(name) for each in self.accumulators.values()):
                continue
            known = self.statistics.setdefault(name, replace(user, name=name))
            if _is_same(known.call, user.call):
                return replace(user, name=name)
        raise AssertionError  # never reached


def _is_same(call: Any, other: Any) -> bool:
    """Whether two callables are one; each access of a method makes another object."""
    return call is other or (isinstance(call, MethodType) and isinstance(other, MethodType) and call == other)


def _is_accumulator(kind: type) -> bool:
    return issubclass(kind, Accumulator)


def accumulator_of(item: Any, where: str) -> Accumulator | None:
    """The accumulator that a rule names instead of a statistic; None if the item is no accumulator.

    Args:
        item: an accumulator, a class of one that needs no arguments, the import path of either, or a mapping with `class_path`
            and `init_args`.
        where: the option that holds it, for messages.

    Raises:
        RuleError: an accumulator that cannot be used, or nothing can be imported from the path.
    """
    found = (
        import_object(item, where)
        if isinstance(item, str)
        else as_object(item, where, _is_accumulator, "a class of accumulators")
    )
    if isinstance(found, type) and issubclass(found, Accumulator):
        try:
            found = found()
        except TypeError as error:
            raise RuleError(f"{where}: {error}; give an object of {found.__name__} instead of the class") from error
    if not isinstance(found, Accumulator):
        return None
    shown = type(found).__name__
    if not isinstance(found.name, str) or not found.name or any(each.name == found.name for each in BUILT_IN):
        raise RuleError(f"{where}: {shown}.name must be a name that no built-in accumulator has, got {found.name!r}")
    if not found.columns or not found.statistics:
        raise RuleError(f"{where}: {shown} needs at least one column and one statistic")
    rules = {column.name: column.merge for column in found.columns if column.merge not in ("sum", "min", "max")}
    if rules:
        raise RuleError(f"{where}: columns of {shown} are merged by 'sum', 'min' or 'max', got {rules}")
    wrong = [stat for stat in found.statistics if not isinstance(stat, str) or "/" in stat or not stat]
    if wrong:
        raise RuleError(f"{where}: {shown} has a statistic {wrong[0]!r}, which cannot be a part of a tag")
    return found
