"""Which rows of a plan are about which parameter, and which of them are due."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from operator import is_
from typing import NamedTuple

from torch import nn

from lightning_hooks.engine.participant import HasParameters
from lightning_hooks.engine.plan.plan import Plan
from lightning_hooks.engine.plan.rows import Row
from lightning_hooks.records.row_index import Due
from lightning_hooks.rules import MODULE_TENSORS, parse_tensor
from lightning_hooks.stats.table import RowOffsets, Table


class DueRows:
    """Rows that are due, each with its parameter; iterating gives pairs of parameters and indices.

    Args:
        parameters: of the rows.
        rows: the indices of those of one of their tensors, or of several one after the other.
        table: in which the rows are.
    """

    __slots__ = ("_part", "_places", "_table", "parameters", "rows")

    def __init__(self, parameters: list[nn.Parameter], rows: Iterable[int], table: Table) -> None:
        self.parameters = parameters
        self.rows = array("i", rows)
        self._table = table
        self._places: RowOffsets | None = None
        self._part: tuple[list[int], DueRows] | None = None  # what was asked for last

    def __iter__(self) -> Iterator[tuple[nn.Parameter, int]]:
        return iter(zip(self.parameters, self.rows, strict=True))

    @property
    def places(self) -> RowOffsets:
        """Where in the table the rows are; found once."""
        if self._places is None:
            self._places = self._table.offsets(self.rows)
        return self._places

    def only(self, kept: list[int]) -> DueRows:
        """Some of them; the same object where the same are asked for again.

        Args:
            kept: which, counted from 0.
        """
        if self._part is None or self._part[0] != kept:
            part = DueRows([self.parameters[i] for i in kept], (self.rows[i] for i in kept), self._table)
            self._part = kept, part
        return self._part[1]


class Found(NamedTuple):
    """What is due of the parameters of an optimizer.

    Args:
        of: all its parameters that train.
        each: the rows of each tensor that was asked for.
        all: those of one after those of the other.
    """

    of: list[nn.Parameter]
    each: tuple[DueRows, ...]
    all: DueRows

    def are_of(self, parameters: Sequence[nn.Parameter]) -> bool:
        """Whether it was found for these parameters."""
        return are_same(self.of, parameters)


def are_same(some: Sequence[nn.Parameter], others: Sequence[nn.Parameter]) -> bool:
    """Whether two lists hold the same objects."""
    return len(some) == len(others) and all(map(is_, some, others))


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
        self._due: dict[tuple[tuple[str, ...], Due, int], Found] = {}
        self.of_state = [tensor for tensor in plan.tensors if parse_tensor(tensor)[0] == "state"]
        """The tensors of optimizer states that are watched: `state.exp_avg` and the like."""

    def renew(self) -> None:
        """Find rows by the parameters that there are now."""
        self._due.clear()

    def due(self, optimizer: HasParameters, schedules: Due, *tensors: str) -> Found:
        """The parameters of an optimizer of which tensors are due, with their rows; found once for the same parameters.

        Frozen ones are left out as long as they are frozen.

        Args:
            optimizer: whose, in its order.
            schedules: those that are due.
            tensors: which, one or several.
        """
        parameters = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
        key = (tensors, schedules, id(parameters[0]) if parameters else 0)
        known = self._due.get(key)
        if known is None or not known.are_of(parameters):
            each = tuple(self._find(parameters, schedules, tensor) for tensor in tensors)
            known = self._due[key] = Found(parameters, each, each[0] if len(each) == 1 else self._join(each))
        return known

    def _find(self, parameters: list[nn.Parameter], schedules: Due, tensor: str) -> DueRows:
        rows = {
            id(row.target.value): row.index
            for row in self._plan.rows
            if row.tensor == tensor and row.kind not in MODULE_TENSORS and self._is_due(row, schedules)
        }
        found = [parameter for parameter in parameters if id(parameter) in rows]
        return DueRows(found, (rows[id(parameter)] for parameter in found), self._table)

    def _join(self, each: Sequence[DueRows]) -> DueRows:
        return DueRows([p for due in each for p in due.parameters], (row for due in each for row in due.rows), self._table)

    def _is_due(self, row: Row, schedules: Due) -> bool:
        if row.due(schedules):
            return True
        served = self._serves.get(row.index)
        return served is not None and self._plan.rows[served].due(schedules)
