"""Registry of the user's own statistics (functions and metrics) and accumulators: gives each a name that no other has."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from types import MethodType
from typing import Any, Final

from lightning_hooks.errors import RuleError, shown
from lightning_hooks.rules.importing import import_object
from lightning_hooks.rules.reading import as_object
from lightning_hooks.rules.statistics import is_known
from lightning_hooks.stats.accumulators import BUILT_IN, Accumulator
from lightning_hooks.stats.user_statistics import UserStatistic

_MAX_POWER: Final = 16  # the usual loss scale 2**16 to this power is 2**256, which float64 can hold


@dataclass
class UserRegistry:
    """The user's own statistics and accumulators, by name, of all rules that were resolved so far.

    Args:
        statistics: functions and metrics.
        accumulators: objects of `Accumulator` classes that users wrote.
    """

    statistics: dict[str, UserStatistic] = field(default_factory=dict)
    accumulators: dict[str, Accumulator] = field(default_factory=dict)

    def add_accumulator(self, accumulator: Accumulator, where: str) -> tuple[str, ...]:
        """Add an accumulator; returns the names of the statistics that it computes.

        Raises:
            RuleError: the accumulator or one of its statistics has a name that is taken.
        """
        if self.accumulators.setdefault(accumulator.name, accumulator) != accumulator:
            raise RuleError(f"{where}: another accumulator is called {accumulator.name!r}; give one of them another name")
        for stat in accumulator.statistics:
            has_stat = any(each.serves(stat) for each in self.accumulators.values() if each != accumulator)
            if has_stat or stat in self.statistics or is_known(stat) or stat == "count":
                raise RuleError(f"{where}: {accumulator!r} cannot have a statistic {stat!r}: the name is taken")
        return accumulator.statistics

    def add_statistic(self, user: UserStatistic) -> UserStatistic:
        """Add a function or metric; returns it with a name that no other has: `name`, `name_2`, … in the order of the rules."""
        for number in itertools.count(1):
            name = user.name if number == 1 else f"{user.name}_{number}"
            if any(each.serves(name) for each in self.accumulators.values()):
                continue
            registered = self.statistics.setdefault(name, replace(user, name=name))
            if _is_same(registered.call, user.call):
                return replace(user, name=name)
        raise AssertionError  # never reached: the loop returns with the first free name


def _is_same(call: Any, other: Any) -> bool:
    """Whether two callables are the same; bound methods are compared by value, because each access creates a new object."""
    return call is other or (isinstance(call, MethodType) and isinstance(other, MethodType) and call == other)


def _is_accumulator(kind: type) -> bool:
    return issubclass(kind, Accumulator)


def accumulator_of(item: Any, where: str) -> Accumulator | None:
    """The accumulator that a rule names instead of a statistic; None if the item is no accumulator.

    Args:
        item: an accumulator, a class of accumulators that needs no arguments, the import path of either, or a mapping with
            `class_path` and `init_args`.
        where: the option that holds the item, for messages.

    Raises:
        RuleError: the import path does not exist, or the name, columns or statistics of the accumulator are invalid.
    """
    accumulator = (
        import_object(item, where)
        if isinstance(item, str)
        else as_object(item, where, _is_accumulator, "a class of accumulators")
    )
    if isinstance(accumulator, type) and issubclass(accumulator, Accumulator):
        try:
            accumulator = accumulator()
        except TypeError as error:
            raise RuleError(f"{where}: {error}; give an object of {accumulator.__name__} instead of the class") from error
    if not isinstance(accumulator, Accumulator):
        return None
    _check_accumulator(accumulator, where)
    return accumulator


def _is_power(power: Any) -> bool:
    return isinstance(power, int) and not isinstance(power, bool) and abs(power) <= _MAX_POWER


def _check_accumulator(accumulator: Accumulator, where: str) -> None:
    shown_class, name = type(accumulator).__name__, accumulator.name
    if not isinstance(name, str) or not name or any(each.name == name for each in BUILT_IN):
        raise RuleError(f"{where}: {shown_class}.name must be a name that no built-in accumulator has, got {name!r}")
    if not accumulator.columns or not accumulator.statistics:
        raise RuleError(f"{where}: {shown_class} needs at least one column and one statistic")
    invalid_merges = {each.name: each.merge for each in accumulator.columns if each.merge not in ("sum", "min", "max")}
    if invalid_merges:
        raise RuleError(f"{where}: columns of {shown_class} are merged by 'sum', 'min' or 'max', got {invalid_merges}")
    invalid_powers = {each.name: each.power for each in accumulator.columns if not _is_power(each.power)}
    if invalid_powers:
        limits = f"integers from {-_MAX_POWER} to {_MAX_POWER}"
        raise RuleError(f"{where}: powers of columns of {shown_class} must be {limits}, got {shown(invalid_powers)}")
    invalid = [stat for stat in accumulator.statistics if not isinstance(stat, str) or "/" in stat or not stat]
    if invalid:
        raise RuleError(f"{where}: {shown_class} has a statistic {invalid[0]!r}, which cannot be a part of a tag")
