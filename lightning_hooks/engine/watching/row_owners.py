"""Row owners: which owners of a table demand a row, in whose turn it is read, and how its cost is split between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lightning_hooks.plan.plan import Plan
from lightning_hooks.plan.rows import Demand, Due, Row


class RowOwners:
    """Says for each row of a plan, and for what is due in a step, which owners demand the row.

    Args:
        plan: the plan of the table.
        count: the number of owners.
        updates_of: returns the rows of updates whose ratio divides by a row of a parameter.
    """

    def __init__(self, plan: Plan, count: int, updates_of: Callable[[int], Sequence[int]]) -> None:
        self._plan = plan
        self._count = count
        self._updates_of = updates_of
        self._owners: dict[Due, list[list[int]]] = {}  # of each row
        self._turns: dict[Due, list[list[int]]] = {}
        self._portions: dict[Due, list[float]] = {}

    def demanding(self, row: Row, demands: Due) -> list[int]:
        """The owners that demand a row when these demands are due, in order."""
        # A row of `param` is also due if the `update` row of its parameter is due, whose `ratio` divides by its norm.
        asking = [row, *(self._plan.rows[update] for update in self._updates_of(row.index))]
        requests = (demand for each in asking for demand, _ in each.requests if demand in demands)
        return sorted({each.owner for each in requests if isinstance(each, Demand)})

    def _owners_at(self, demands: Due) -> list[list[int]]:
        """Of each row of the plan, the owners that demand it."""
        if demands not in self._owners:
            self._owners[demands] = [self.demanding(row, demands) for row in self._plan.rows]
        return self._owners[demands]

    def turn(self, number: int, demands: Due) -> list[int]:
        """The rows that are read in the turn of an owner when these demands are due: those that no owner before it demands."""
        if demands not in self._turns:
            turns: list[list[int]] = [[] for _ in range(self._count)]
            for row, owners in enumerate(self._owners_at(demands)):
                if owners:
                    turns[owners[0]].append(row)
            self._turns[demands] = turns
        return self._turns[demands][number]

    def portion(self, number: int, demands: Due) -> float:
        """The portion of an owner of the rows that are measured when these demands are due.

        A row that several owners demand is split evenly between them.
        """
        if demands not in self._portions:
            portions = [0.0] * self._count
            for asking in self._owners_at(demands):
                for owner in asking:
                    portions[owner] += 1.0 / len(asking)
            total = sum(portions)
            even = 1.0 / self._count
            self._portions[demands] = [each / total for each in portions] if total else [even] * self._count
        return self._portions[demands][number]


def owners_requesting(row: Row) -> set[int]:
    """The owners that request a row in any step."""
    return {each.owner for each, _ in row.requests if isinstance(each, Demand)}
