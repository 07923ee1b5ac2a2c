"""Which rows belong to which parameters of an optimizer, and reading them: one call of the kernel for each tensor of all."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from operator import is_
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter
from torch.optim import Optimizer

from lightning_hooks.engine.participants.phases import PARAM_TENSORS, ParamTensor
from lightning_hooks.errors import RuleError
from lightning_hooks.plan.plan import Plan
from lightning_hooks.plan.rows import Due, Row
from lightning_hooks.rules import parse_tensor
from lightning_hooks.stats import kernels
from lightning_hooks.stats.measurement import Measurement, UnscaledMeasurement, measure_all
from lightning_hooks.stats.table import RowOffsets, Table
from lightning_hooks.tensor_kinds import is_sharded
from lightning_hooks.transforms._batch import foreach

Unwritten = list[tuple[int, Measurement]]
"""Rows that the kernel did not write, with what was measured for them."""


class TensorRows(NamedTuple):
    """The rows of one tensor that are due, and the parameter of each.

    Args:
        tensor: as a rule names it: `grad`, `state.exp_avg`.
        kind: where it comes from.
        parameters: one for each row.
        offsets: where their rows begin in the table.
        sharded: those of sharded parameters, by their place in these lists.
    """

    tensor: str
    kind: ParamTensor
    parameters: list[nn.Parameter]
    offsets: RowOffsets
    sharded: list[int]


class ParamReader:
    """Reads tensors of an optimizer's parameters into the rows of a table; `phases` are those in which anything is read."""

    def __init__(self, plan: Plan, table: Table) -> None:
        self._plan = plan
        self._table = table
        kinds = {tensor: PARAM_TENSORS.get(parse_tensor(tensor)[0]) for tensor in plan.tensors}
        self._kinds = {tensor: kind for tensor, kind in kinds.items() if kind is not None}
        self.phases = {kind.phase for kind in self._kinds.values()}
        self._update_of = {param: update for update, param in plan.param_row_of.items()}
        # By phase, schedules and first parameter: all parameters of an optimizer, and what is read of them.
        self._known: dict[tuple[str, Due, nn.Parameter], tuple[list[nn.Parameter], list[TensorRows]]] = {}
        self._snapshots = Snapshots()
        self._before: WeakKeyDictionary[Optimizer, tuple[list[nn.Parameter], list[Tensor]]] = WeakKeyDictionary()
        self._said_missing: set[str] = set()

    def forget(self) -> None:
        """Give the copies back, and find rows by the parameters that there are then."""
        self._known.clear()
        self._snapshots = Snapshots()
        self._before.clear()

    def due(self, phase: str, optimizer: Optimizer, schedules: Due) -> list[TensorRows]:
        """The rows that are read in a phase when these schedules are due. Those of frozen parameters are skipped."""
        if phase not in self.phases:
            return []
        parameters = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
        if not parameters:
            return []
        key = (phase, schedules, parameters[0])
        known, due = self._known.get(key, ([], []))
        if not _are_same(known, parameters):
            found = (self._find(parameters, schedules, tensor) for tensor, kind in self._kinds.items() if kind.phase == phase)
            due = [wanted for wanted in found if wanted.parameters]
            self._known[key] = parameters, due
        return due

    def copy_parameters(self, optimizer: Optimizer, schedules: Due) -> None:
        """Keep the values of the parameters whose change is read in `after_update`."""
        due = self.due("after_update", optimizer, schedules)
        parameters = [parameter for wanted in due if wanted.kind.is_change for parameter in wanted.parameters]
        if any(issubclass(kind, UninitializedParameter) for kind in {*map(type, parameters)}):  # no value before the first step
            parameters = [p for p in parameters if not isinstance(p, UninitializedParameter)]
        if parameters:
            self._before[optimizer] = parameters, [*parameters]  # if copying fails, other ranks still wait for the differences
            self._before[optimizer] = parameters, self._snapshots.take(optimizer, parameters)

    def read(self, phase: str, optimizer: Optimizer, schedules: Due, scale: Tensor | None = None) -> Unwritten:
        """Set the rows of a phase, and return what is not written; `after_update` needs `copy_parameters` before it.

        Raises:
            RuleError: the optimizer does not have a tensor of its state for which a strict rule asks.
        """
        left: Unwritten = []
        for each in self.due(phase, optimizer, schedules):
            left += self._read_changes(each, optimizer) if each.kind.is_change else self._read_values(each, optimizer, scale)
        if phase == "after_update":
            self._before.pop(optimizer, None)
        return left

    def _read_values(self, wanted: TensorRows, optimizer: Optimizer, scale: Tensor | None) -> Unwritten:
        values = self._values(wanted, optimizer)
        for i in wanted.sharded:
            value = values[i]
            if value is not None and value.dim() == 0:  # a number that every rank keeps for the whole parameter, as `step`
                self._table.hold_alone(wanted.offsets.rows[i])
        tensors = [value for value in values if value is not None]
        every = len(tensors) == len(values)
        indices = wanted.offsets.rows
        rows = indices if every else [row for row, value in zip(indices, values, strict=True) if value is not None]
        if scale is not None and wanted.kind.scaled:
            return self._put(rows, [UnscaledMeasurement(each, scale) for each in measure_all(tensors)])
        left = self._table.measure_all(wanted.offsets if every else rows, tensors)
        return self._put([rows[i] for i in left], measure_all([tensors[i] for i in left])) if left else []

    def _read_changes(self, wanted: TensorRows, optimizer: Optimizer) -> Unwritten:
        """Set rows to the differences between parameters and their copies; these are made only where the kernel cannot."""
        parameters, copies = self._before.get(optimizer, ([], []))
        rows, every = wanted.offsets.rows, _are_same(parameters, wanted.parameters)
        if not every:
            row_of = dict(zip(wanted.parameters, rows, strict=True))
            kept = [i for i, parameter in enumerate(parameters) if parameter in row_of]  # the step froze or removed the others
            parameters, copies = [parameters[i] for i in kept], [copies[i] for i in kept]
            rows = [row_of[parameter] for parameter in parameters]
        left = self._table.measure_all(wanted.offsets if every else rows, parameters, copies)
        if not left:
            return []
        with torch.no_grad():
            changes = [wanted.kind.value(optimizer, parameters[i], copies[i], "") for i in left]
        return self._put([rows[i] for i in left], measure_all([change for change in changes if change is not None]))

    def _values(self, wanted: TensorRows, optimizer: Optimizer) -> list[Tensor | None]:
        value, key = wanted.kind.value, wanted.tensor.partition(".")[2]
        values: list[Tensor | None] = []
        for parameter in wanted.parameters:
            try:
                values.append(value(optimizer, parameter, None, key))
            except RuleError as error:
                self._missing(wanted.tensor, error)
                values.append(None)
        return values

    def _put(self, rows: Sequence[int], measurements: list[Measurement]) -> Unwritten:
        return [(rows[i], measurements[i]) for i in self._table.put_all(rows, measurements)]

    def _find(self, parameters: list[nn.Parameter], schedules: Due, tensor: str) -> TensorRows:
        rows = {row.target.value: row.index for row in self._plan.rows if row.tensor == tensor and self._is_due(row, schedules)}
        found = [parameter for parameter in parameters if parameter in rows]
        sharded = [i for i, parameter in enumerate(found) if is_sharded(parameter)]
        offsets = self._table.offsets([rows[parameter] for parameter in found])
        return TensorRows(tensor, self._kinds[tensor], found, offsets, sharded)

    def _is_due(self, row: Row, schedules: Due) -> bool:
        update = self._update_of.get(row.index)  # whose ratio to this parameter may be due
        return row.due(schedules) or (update is not None and self._plan.rows[update].due(schedules))

    def _missing(self, tensor: str, error: RuleError) -> None:
        """Raise where a strict rule asks for it; otherwise warn once."""
        asking = [known for known in self._plan.rules if tensor in (known.rule.tensors or ())]
        found = next((known for known in asking if known.rule.strict), asking[0])
        if found.rule.strict:
            raise RuleError(f"{found.where}.{error}. Set strict=False if this is intended") from error
        if tensor not in self._said_missing:
            self._said_missing.add(tensor)
            warnings.warn(f"{found.where}.{error}", stacklevel=2)


class Snapshots:
    """Copies of parameters, in memory that is kept from one watched step to the next.

    Memory that is new in every step costs more than the copying: the system hands it out page by page. Tensors on a CUDA device
    are copied in a few launches. What can be copied in neither way (subclasses) is cloned each time.

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
        copies = []
        for parameter in parameters:
            copy = kept.get(parameter)
            if copy is None:
                copy = kept[parameter] = parameter.detach().clone()
            copies.append(copy)
        left = kernels.host.copy_many(copies, parameters)
        together = [i for i in left if parameters[i].is_cuda and _are_alike(copies[i], parameters[i])]
        if together:
            with torch.no_grad():
                foreach("copy", [copies[i] for i in together], [parameters[i] for i in together], owned=True)
        for i in sorted({*left} - {*together}):
            copies[i] = kept[parameters[i]] = parameters[i].detach().clone()
        return copies


def _are_alike(copy: Tensor, parameter: nn.Parameter) -> bool:
    return (
        type(parameter) is nn.Parameter
        and parameter.layout is torch.strided
        and (copy.device, copy.dtype, copy.shape) == (parameter.device, parameter.dtype, parameter.shape)
        and copy.stride() == parameter.stride()
    )


def _are_same(some: Sequence[Any], others: Sequence[Any]) -> bool:
    return len(some) == len(others) and all(map(is_, some, others))
