"""Reads tensors of an optimizer's parameters (`param`, `grad`, `update`, …) into rows.

One call of the kernel reads all tensors that exist in a phase, and a second one those that are differences.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter
from torch.optim import Optimizer

from lightning_hooks.engine.participants.phases import PARAM_TENSORS, ParamTensor
from lightning_hooks.engine.watching.snapshots import Snapshots
from lightning_hooks.errors import RuleError
from lightning_hooks.plan.plan import Plan
from lightning_hooks.plan.rows import Due, Row
from lightning_hooks.rules import parse_tensor
from lightning_hooks.snapshot.contents import are_same
from lightning_hooks.stats.divided import measure_divided
from lightning_hooks.stats.measurement import Measurement, UnscaledMeasurement, measure_all
from lightning_hooks.stats.row_offsets import RowOffsets
from lightning_hooks.stats.table import Table
from lightning_hooks.tensor_kinds import held_part, is_sharded

Unwritten = list[tuple[int, Measurement]]
"""Rows that the kernel did not write, with their measurements."""


class TensorRows(NamedTuple):
    """The rows of one tensor that are due, and the parameter of each.

    Args:
        tensor: the tensor as a rule names it: `grad`, `state.exp_avg`.
        kind: the phase in which the tensor exists, and how to read it.
        parameters: one parameter for each row.
        offsets: the offsets of the rows in the table, in the order of `parameters`.
        sharded: the indices of the sharded parameters in `parameters`.
    """

    tensor: str
    kind: ParamTensor
    parameters: list[nn.Parameter]
    offsets: RowOffsets
    sharded: list[int]


@dataclass(slots=True)
class _Copies:
    """Copies of parameters from before an update; the parameters themselves until they are copied."""

    parameters: list[nn.Parameter]
    tensors: Sequence[Tensor]


class ParamReader:
    """Reads tensors of an optimizer's parameters into the rows of a table.

    Args:
        plan: the rows.
        table: is written.
        held: the rows of which, for a sharded tensor, what this rank holds is read, without waiting for another rank.

    Attributes:
        phases: those in which anything is read.
        changes: the changes of the last update that the kernel wrote as a whole; None if it did not.
    """

    def __init__(self, plan: Plan, table: Table, held: Collection[int] = ()) -> None:
        self._plan = plan
        self._held = held
        self._table = table
        kinds = {tensor: PARAM_TENSORS.get(parse_tensor(tensor)[0]) for tensor in plan.tensors}
        self._kinds = {tensor: kind for tensor, kind in kinds.items() if kind is not None}
        self.phases = {kind.phase for kind in self._kinds.values()}
        self._rows = [row for row in plan.rows if row.tensor in self._kinds]
        self._rows_due: dict[Due, list[Row]] = {}
        self._updates_of: dict[int, list[int]] = {}
        for update, param in plan.param_row_of.items():
            self._updates_of.setdefault(param, []).append(update)
        # By phase, turn, demands and first parameter: the optimizer's parameters at the last lookup, and their rows.
        self._cached: dict[tuple[str, int | None, Due, nn.Parameter], tuple[list[nn.Parameter], list[TensorRows]]] = {}
        # By phase, turn and demands: the tensors of which a row is due, which do not depend on the optimizer.
        self._tensors: dict[tuple[str, int | None, Due], list[str]] = {}
        # The lists of rows that one call of the kernel has written together last, and their offsets one after the other.
        self._joined: tuple[list[RowOffsets], RowOffsets] | None = None
        self._snapshots = Snapshots()
        self.changes: TensorRows | None = None
        self._before: WeakKeyDictionary[Optimizer, _Copies] = WeakKeyDictionary()
        self._warned_of: set[str] = set()  # the tensors, such as `state.exp_avg`, whose absence was warned of

    def forget(self) -> None:
        """Free the copies, and look up the rows again in the next step: parameters may have been replaced."""
        self._cached.clear()
        self._snapshots = Snapshots()
        self.changes = None
        self._before.clear()

    def updates_of(self, param: int) -> Sequence[int]:
        """The rows of updates whose ratio divides by a row of a parameter."""
        return self._updates_of.get(param, ())

    def due(
        self, phase: str, optimizer: Optimizer, schedules: Due, turn: int | None = None, rows: Collection[int] | None = None
    ) -> list[TensorRows]:
        """The rows that are read in a phase when these schedules are due. Rows of frozen parameters are skipped.

        Args:
            phase: the phase.
            optimizer: whose parameters are read.
            schedules: what is due.
            turn: the owner in whose turn they are read; None for all.
            rows: those of that turn.
        """
        tensors = self._tensors_of(phase, schedules, turn, rows) if phase in self.phases else ()
        if not tensors:
            return []
        parameters = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
        if not parameters:
            return []
        key = (phase, turn, schedules, parameters[0])
        cached, due = self._cached.get(key, ([], []))
        if not are_same(cached, parameters):
            chosen = None if rows is None else frozenset(rows)
            due = [each for tensor in tensors for each in self._find(parameters, schedules, tensor, chosen)]
            self._cached[key] = parameters, due
        return due

    def _tensors_of(self, phase: str, schedules: Due, turn: int | None, rows: Collection[int] | None) -> Sequence[str]:
        """The tensors of a phase of which a row is due, of whichever parameter; arguments as of `due`."""
        key = (phase, turn, schedules)
        if key not in self._tensors:
            chosen = None if rows is None else frozenset(rows)
            due = {row.tensor for row in self._due_of(schedules, chosen)}
            self._tensors[key] = [tensor for tensor, kind in self._kinds.items() if kind.phase == phase and tensor in due]
        return self._tensors[key]

    def copy_parameters(self, optimizer: Optimizer, schedules: Due) -> None:
        """Keep the values of the parameters whose change is read in `after_update`."""
        self.changes = None
        changing = [rows.parameters for rows in self.due("after_update", optimizer, schedules) if rows.kind.is_change]
        if not changing:
            return
        parameters = changing[0] if len(changing) == 1 else [parameter for several in changing for parameter in several]
        # Skip lazy parameters, which have no value before the first step.
        if any(issubclass(kind, UninitializedParameter) for kind in {*map(type, parameters)}):
            parameters = [p for p in parameters if not isinstance(p, UninitializedParameter)]
        if parameters:
            # Note the parameters first: if copying fails, this rank must still read the differences, where other ranks wait for
            # it.
            copies = self._before[optimizer] = _Copies(parameters, parameters)
            copies.tensors = self._snapshots.take(optimizer, parameters)

    def read(self, phase: str, optimizer: Optimizer, rows: Sequence[TensorRows], scale: Tensor | None = None) -> Unwritten:
        """Set rows of a phase, and return the rows that are not written. `after_update` needs `copy_parameters` before it.

        Args:
            phase: the phase.
            optimizer: whose parameters are read.
            rows: from `due`.
            scale: the loss scale by which gradients are still multiplied; None if they are not.

        Raises:
            RuleError: a strict rule names a tensor of the optimizer's state that the optimizer does not have.
        """
        unwritten: Unwritten = []
        together: list[tuple[RowOffsets, list[Tensor]]] = []
        for due in rows:
            if due.kind.is_change:
                unwritten += self._read_changes(due, optimizer)
                continue
            offsets, tensors = self._values(due, optimizer)
            if scale is not None and due.kind.scaled:
                unwritten += self._measure_scaled(offsets, tensors, scale)
            elif offsets.is_direct:
                together.append((offsets, tensors))
            else:
                unwritten += self._measure([(offsets, tensors)])
        # Parameters and gradients exist at the same time, so one call of the kernel measures both.
        unwritten += self._measure(together)
        if phase == "after_update":
            self._before.pop(optimizer, None)
        return unwritten

    def _values(self, due: TensorRows, optimizer: Optimizer) -> tuple[RowOffsets, list[Tensor]]:
        """The tensors of rows, and the offsets of the rows of which there is a tensor now."""
        values = self._look_up(due, optimizer)
        for i in due.sharded:
            value = values[i]
            # Every rank holds a scalar such as Adam's `step` for the whole parameter: do not add it up over ranks.
            if value is not None and value.dim() == 0:
                self._table.hold_alone(due.offsets.rows[i])
        indices = due.offsets.rows
        for i in due.sharded if self._held else ():
            value = values[i]
            if value is not None and indices[i] in self._held:
                values[i] = held_part(value)
        tensors = [value for value in values if value is not None]
        if len(tensors) == len(values):
            return due.offsets, tensors
        rows = [row for row, value in zip(indices, values, strict=True) if value is not None]
        return self._table.offsets(rows), tensors

    def _measure(self, lists: Sequence[tuple[RowOffsets, list[Tensor]]]) -> Unwritten:
        """Set the rows of several lists in one call of the kernel."""
        if not lists:
            return []
        several = [each for each, _ in lists]
        if self._joined is None or not are_same(self._joined[0], several):
            self._joined = several, RowOffsets.joined(several)
        offsets = self._joined[1]
        tensors = [tensor for _, of_rows in lists for tensor in of_rows]
        left = self._table.measure_all(offsets, tensors)
        return self._put([offsets.rows[i] for i in left], measure_all([tensors[i] for i in left])) if left else []

    def _measure_scaled(self, offsets: RowOffsets, tensors: list[Tensor], scale: Tensor) -> Unwritten:
        """Set the rows of gradients that are multiplied by the loss scale."""
        left = measure_divided(self._table, offsets, tensors, scale)
        if not left:
            return []
        measurements: list[Measurement] = [UnscaledMeasurement(each, scale) for each in measure_all([tensors[i] for i in left])]
        return self._put([offsets.rows[i] for i in left], measurements)

    def _read_changes(self, due: TensorRows, optimizer: Optimizer) -> Unwritten:
        """Set rows to the differences between parameters and their copies; the kernel subtracts while measuring, if it can."""
        before = self._before.get(optimizer)
        parameters, copies = ([], []) if before is None else (before.parameters, before.tensors)
        rows, is_complete = due.offsets.rows, are_same(parameters, due.parameters)
        if not is_complete:
            row_of = dict(zip(due.parameters, rows, strict=True))
            # Skip a parameter that was copied before the step of the optimizer, and was frozen or removed during the step.
            kept = [i for i, parameter in enumerate(parameters) if parameter in row_of]
            parameters, copies = [parameters[i] for i in kept], [copies[i] for i in kept]
            rows = [row_of[parameter] for parameter in parameters]
        left = self._table.measure_all(due.offsets if is_complete else rows, parameters, copies)
        if not left:
            self.changes = due if is_complete and not due.sharded else None
            return []
        with torch.no_grad():
            found = [(rows[i], due.kind.value(optimizer, parameters[i], copies[i], "")) for i in left]
        changes = [held_part(change) if row in self._held else change for row, change in found if change is not None]
        return self._put([rows[i] for i in left], measure_all(changes))

    def _look_up(self, due: TensorRows, optimizer: Optimizer) -> list[Tensor | None]:
        if due.kind.of_all is not None:
            return due.kind.of_all(due.parameters)
        value, key = due.kind.value, due.tensor.partition(".")[2]
        values: list[Tensor | None] = []
        for parameter in due.parameters:
            try:
                values.append(value(optimizer, parameter, None, key))
            except RuleError as error:
                self._report_missing(due.tensor, error)
                values.append(None)
        return values

    def _put(self, rows: Sequence[int], measurements: list[Measurement]) -> Unwritten:
        return [(rows[i], measurements[i]) for i in self._table.measuring.put_all(rows, measurements)]

    def _find(
        self, parameters: list[nn.Parameter], schedules: Due, tensor: str, chosen: Collection[int] | None
    ) -> Iterator[TensorRows]:
        """The due rows of a tensor, at most one of each parameter in a result. `chosen` limits them to some rows."""
        rows: dict[nn.Parameter, list[int]] = {}
        for row in self._due_of(schedules, chosen):
            if row.tensor == tensor:
                rows.setdefault(row.target.value, []).append(row.index)
        counted = self._plan.on_request_at(schedules).get("histogram", ())
        # Several owners may need rows of their own of one tensor; see `plan/joined.py`.
        for position in range(max(map(len, rows.values()), default=0)):
            watched = [parameter for parameter in parameters if len(rows.get(parameter, ())) > position]
            sharded = [i for i, parameter in enumerate(watched) if is_sharded(parameter)]
            if watched:
                offsets = self._table.offsets([rows[parameter][position] for parameter in watched], counted)
                yield TensorRows(tensor, self._kinds[tensor], watched, offsets, sharded)

    def _due_of(self, schedules: Due, chosen: Collection[int] | None) -> list[Row]:
        """The rows that are due, of those that are chosen; all by default."""
        if schedules not in self._rows_due:
            self._rows_due[schedules] = [row for row in self._rows if self._is_due(row, schedules)]
        due = self._rows_due[schedules]
        return due if chosen is None else [row for row in due if row.index in chosen]

    def _is_due(self, row: Row, schedules: Due) -> bool:
        # A row of `param` is also due if the `update` row of its parameter is due, whose `ratio` divides by the norm of
        # `param`.
        return row.due(schedules) or any(self._plan.rows[update].due(schedules) for update in self.updates_of(row.index))

    def _report_missing(self, tensor: str, error: RuleError) -> None:
        """Raise if a strict rule names the tensor; otherwise warn once."""
        rules = [each for each in self._plan.rules if tensor in (each.rule.tensors or ())]
        resolved = next((each for each in rules if each.rule.strict), rules[0])
        if resolved.rule.strict:
            raise RuleError(f"{resolved.where}.{error}. Set strict=False if this is intended") from error
        if tensor not in self._warned_of:
            self._warned_of.add(tensor)
            warnings.warn(f"{resolved.where}.{error}", stacklevel=2)
