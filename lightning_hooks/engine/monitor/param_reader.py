"""Which rows belong to which parameters of an optimizer, and reading them: one call of the kernel for many tensors."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from operator import is_
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from lightning_hooks.engine.monitor.param_tensors import KINDS, ParamTensor
from lightning_hooks.engine.participant import HasParameters
from lightning_hooks.engine.plan.plan import Plan
from lightning_hooks.engine.plan.rows import Row
from lightning_hooks.errors import RuleError
from lightning_hooks.records.row_index import Due
from lightning_hooks.rules import parse_tensor
from lightning_hooks.stats import kernels
from lightning_hooks.stats.divided import Divided
from lightning_hooks.stats.measurement import Measurement, measure_all
from lightning_hooks.stats.table import Places, Table

Left = list[tuple[int, Measurement]]
"""Rows that the kernel did not write, with what was measured for them."""


class TensorRows(NamedTuple):
    """The rows of one tensor that are due: a parameter for each."""

    tensor: str
    kind: ParamTensor
    parameters: list[nn.Parameter]
    rows: list[int]


class ParamReader:
    """Reads tensors of an optimizer's parameters into the rows of a table.

    Args:
        plan: whose rows.
        table: in which they are.
    """

    def __init__(self, plan: Plan, table: Table) -> None:
        self._plan = plan
        self._table = table
        kinds = [(tensor, KINDS[kind]) for tensor in plan.tensors if (kind := parse_tensor(tensor)[0]) in KINDS]
        self._read_together = {  # by phase: the tensors that one call can measure
            phase: [
                [(tensor, kind) for tensor, kind in kinds if kind.phase == phase and kind.less_before == less_before]
                for less_before in (True, False)
            ]
            for phase in {kind.phase for _, kind in kinds}
        }
        self._update_of = {param: update for update, param in plan.param_row_of.items()}
        self._known: dict[tuple[str, Due, nn.Parameter], _Due] = {}
        self._snapshots = Snapshots()
        self._before: WeakKeyDictionary[HasParameters, tuple[list[nn.Parameter], list[Tensor]]] = WeakKeyDictionary()
        self._said_missing: set[str] = set()

    @property
    def phases(self) -> set[str]:
        """Those in which anything is read."""
        return {*self._read_together}

    def forget(self) -> None:
        """Give the copies back, and find rows by the parameters that there are then."""
        self._known.clear()
        self._snapshots = Snapshots()
        self._before.clear()

    def due(self, phase: str, optimizer: HasParameters, schedules: Due) -> list[TensorRows]:
        """The rows that are read in a phase when these schedules are due. Those of frozen parameters are skipped."""
        return [part for call in self._calls(phase, optimizer, schedules) for part in call.parts]

    def copy_parameters(self, optimizer: HasParameters, schedules: Due) -> None:
        """Keep the values of the parameters whose change is read in `after_update`."""
        watched = [
            p for part in self.due("after_update", optimizer, schedules) if part.kind.less_before for p in part.parameters
        ]
        if not watched:
            return
        # A lazy parameter has no value before its first step.
        parameters = [p for p in watched if not isinstance(p, UninitializedParameter)]
        self._before[optimizer] = parameters, self._snapshots.take(optimizer, parameters)

    def read(self, phase: str, optimizer: HasParameters, schedules: Due, scale: Tensor | None = None) -> Left:
        """Set the rows of a phase.

        Args:
            phase: which; `after_update` needs `copy_parameters` before it.
            optimizer: whose parameters.
            schedules: those that are due.
            scale: the loss scale by which gradients are still multiplied, if they are.

        Returns:
            What is not written.

        Raises:
            RuleError: the optimizer does not have a tensor of its state for which a strict rule asks.
        """
        left: Left = []
        for call in self._calls(phase, optimizer, schedules):
            values: list[Tensor | None] = []
            for part in call.parts:
                values += part.kind.values(optimizer, part.parameters, part.tensor, self._missing)
            before: list[Tensor] | None = None
            if call.less_before:
                values, before = self._changed(optimizer, values)
            rows: Sequence[int] | Places = call.places
            kept = [i for i, value in enumerate(values) if value is not None]
            if len(kept) < len(values):
                rows = [call.rows[i] for i in kept]
            there = [value for value in values if value is not None]
            if scale is not None and any(part.kind.scaled for part in call.parts):
                scaled = [part.kind.scaled for part in call.parts for _ in part.rows]
                looks = measure_all(there)
                looks = [Divided(look, scale) if scaled[i] else look for i, look in zip(kept, looks, strict=True)]
                left += self._put([call.rows[i] for i in kept], looks)
                continue
            not_measured = self._table.measure_all(rows, there, before)
            if not_measured:
                with torch.no_grad():
                    again = [_difference(there[i], before[i]) if before else there[i] for i in not_measured]
                left += self._put([call.rows[kept[i]] for i in not_measured], measure_all(again))
        return left

    def _put(self, rows: list[int], looks: list[Measurement]) -> Left:
        return [(rows[i], looks[i]) for i in self._table.put_all(rows, looks)]

    def _changed(self, optimizer: HasParameters, values: list[Tensor | None]) -> tuple[list[Tensor | None], list[Tensor]]:
        """Parameters, None for those of which there is no copy, and the copies of the others."""
        parameters, copies = self._before.pop(optimizer, ([], []))
        if _are_same(parameters, values):
            return values, copies
        copy_of = dict(zip(parameters, copies, strict=True))
        there = [value if value in copy_of else None for value in values]
        return there, [copy_of[value] for value in there if value is not None]  # type: ignore[index]

    def _calls(self, phase: str, optimizer: HasParameters, schedules: Due) -> list[_Call]:
        if phase not in self._read_together:
            return []
        parameters = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
        if not parameters:
            return []
        key = (phase, schedules, parameters[0])
        known = self._known.get(key)
        if known is None or not _are_same(known.parameters, parameters):
            found = [[self._find(parameters, schedules, *each) for each in tensors] for tensors in self._read_together[phase]]
            calls = [_Call(parts, self._table) for parts in found if any(part.rows for part in parts)]
            known = self._known[key] = _Due(parameters, calls)
        return known.calls

    def _find(self, parameters: list[nn.Parameter], schedules: Due, tensor: str, kind: ParamTensor) -> TensorRows:
        rows = {row.target.value: row.index for row in self._plan.rows if row.tensor == tensor and self._is_due(row, schedules)}
        found = [parameter for parameter in parameters if parameter in rows]
        return TensorRows(tensor, kind, found, [rows[parameter] for parameter in found])

    def _is_due(self, row: Row, schedules: Due) -> bool:
        update = self._update_of.get(row.index)  # whose ratio to this parameter may be due
        return row.due(schedules) or (update is not None and self._plan.rows[update].due(schedules))

    def _missing(self, tensor: str, error: RuleError) -> None:
        """Raise where a strict rule asks for it; otherwise warn once."""
        asking = [(i, known.rule) for i, known in enumerate(self._plan.rules) if tensor in (known.rule.tensors or ())]
        position, rule = next(((i, rule) for i, rule in asking if rule.strict), asking[0])
        if rule.strict:
            raise RuleError(f"watch[{position}].{error}. Set strict=False if that is meant") from error
        if tensor not in self._said_missing:
            self._said_missing.add(tensor)
            warnings.warn(f"watch[{position}].{error}", stacklevel=2)


class _Call:
    """Rows of one or several tensors that are measured in one call."""

    def __init__(self, parts: list[TensorRows], table: Table) -> None:
        self.parts = parts
        self.less_before = parts[0].kind.less_before
        self.rows = [row for part in parts for row in part.rows]
        self.places = table.places(self.rows)


class _Due(NamedTuple):
    """What is read of the parameters of an optimizer."""

    parameters: list[nn.Parameter]
    calls: list[_Call]


class Snapshots:
    """Copies of parameters, in memory that is kept from one watched step to the next.

    Memory that is new in every step costs more than the copying: the system hands it out page by page. What the kernel cannot
    copy in host memory (tensors on a device, subclasses) is cloned each time; the allocator of a device keeps memory by itself.

    Each optimizer has its own: one may step inside another's step.

    Example:
        >>> weight, optimizer = nn.Parameter(torch.ones(2)), torch.optim.SGD([torch.ones(1)])
        >>> Snapshots().take(optimizer, [weight])[0].tolist()
        [1.0, 1.0]
    """

    def __init__(self) -> None:
        self._kept: WeakKeyDictionary[Any, dict[nn.Parameter, Tensor]] = WeakKeyDictionary()

    def take(self, optimizer: Any, parameters: Sequence[nn.Parameter]) -> list[Tensor]:
        """Copies in the order of the parameters; the next call for the optimizer may overwrite them."""
        kept = self._kept.setdefault(optimizer, {})
        for parameter in parameters:
            if parameter not in kept:
                kept[parameter] = parameter.detach().clone()
        copies = [kept[parameter] for parameter in parameters]
        for i in kernels.host.copy_many(copies, parameters):
            copies[i] = kept[parameters[i]] = parameters[i].detach().clone()
        return copies


def _difference(value: Tensor, before: Tensor) -> Tensor:
    # In float32 at least: the difference of two numbers of half precision need not be one.
    return value.detach().to(torch.promote_types(value.dtype, torch.float32)) - before


def _are_same(some: Sequence[Any], others: Sequence[Any]) -> bool:
    return len(some) == len(others) and all(map(is_, some, others))
