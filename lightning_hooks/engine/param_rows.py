"""Which rows of a plan are about which parameter, and which of them are due."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import is_

from torch import nn

from lightning_hooks.engine.participant import HasParameters
from lightning_hooks.engine.plan import Due, Plan, Row
from lightning_hooks.rules import MODULE_TENSORS
from lightning_hooks.stats.table import Places, Table


class DueRows:
    """Parameters with the rows that are due of one of their tensors; iterating gives pairs of them.

    Args:
        every: the parameters of an optimizer that train.
        rows: the row of each that has one, by its id.
        table: in which the rows are.
    """

    __slots__ = ("_every", "parameters", "places", "rows")

    def __init__(self, every: list[nn.Parameter], rows: dict[int, Row], table: Table) -> None:
        self._every = every
        self.parameters = [parameter for parameter in every if id(parameter) in rows]
        self.rows = [rows[id(parameter)] for parameter in self.parameters]
        self.places: Places = table.places([row.index for row in self.rows])

    def __iter__(self) -> Iterator[tuple[nn.Parameter, Row]]:
        return iter(zip(self.parameters, self.rows, strict=True))

    def are_of(self, parameters: Sequence[nn.Parameter]) -> bool:
        """Whether they were found for these parameters."""
        return len(self._every) == len(parameters) and all(map(is_, self._every, parameters))


class ParamRows:
    """The rows of parameters, found by the objects that there are now.

    Args:
        plan: whose rows.
        table: in which they are.
    """

    def __init__(self, plan: Plan, table: Table) -> None:
        self._plan = plan
        self._table = table
        self._serves = {param: update for update, param in plan.param_row_of.items()}
        self._rows: dict[str, dict[int, Row]] = {}
        self._due: dict[tuple[str, Due, int], DueRows] = {}
        self.renew()

    @property
    def of_state(self) -> list[str]:
        """The tensors of optimizer states that are watched: `state.exp_avg` and the like."""
        return [tensor for tensor in self._rows if tensor.startswith("state.")]

    def renew(self) -> None:
        """Find rows by the parameters that there are now."""
        self._rows.clear()
        self._due.clear()
        for row in self._plan.rows:
            if row.kind not in MODULE_TENSORS:
                self._rows.setdefault(row.tensor, {})[id(row.target.value)] = row

    def due(self, optimizer: HasParameters, schedules: Due, *tensors: str) -> list[DueRows]:
        """The parameters of an optimizer of which tensors are due, with their rows; found once for the same parameters.

        Frozen ones are left out as long as they are frozen.

        Args:
            optimizer: whose, in its order.
            schedules: those that are due.
            tensors: which, one or several.
        """
        parameters = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
        first = id(parameters[0]) if parameters else 0
        found: list[DueRows] = []
        for tensor in tensors:
            known = self._due.get((tensor, schedules, first))
            if known is None or not known.are_of(parameters):
                rows = {key: row for key, row in self._rows.get(tensor, {}).items() if self._is_due(row, schedules)}
                known = self._due[tensor, schedules, first] = DueRows(parameters, rows, self._table)
            found.append(known)
        return found

    def _is_due(self, row: Row, schedules: Due) -> bool:
        if row.due(schedules):
            return True
        served = self._serves.get(row.index)
        return served is not None and self._plan.rows[served].due(schedules)
