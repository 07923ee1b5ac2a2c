"""Share views: makes the step views of one owner from the numbers of a table."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from lightning_hooks.engine.watching.share import Share
from lightning_hooks.errors import RuleError
from lightning_hooks.plan.plan import Plan
from lightning_hooks.plan.rows import WHOLE, Due
from lightning_hooks.records.facts import StepFacts, Structure
from lightning_hooks.records.global_numbers import GlobalNumbers
from lightning_hooks.records.step_view import StepView
from lightning_hooks.stats.accumulators import MOMENTS, AccumulatorRows, History
from lightning_hooks.stats.accumulators.store import no_numbers
from lightning_hooks.stats.moments import merge_by_index
from lightning_hooks.stats.pairs import noise_scale
from lightning_hooks.stats.row_states import RowStates
from lightning_hooks.stats.table import Table

Array = NDArray[np.float64]
Averages = tuple[float, float]
"""The two averages of a row from which its noise scale is computed."""


class TableNumbers(NamedTuple):
    """The numbers of a finished step of a table, merged over ranks and divided by the loss scale.

    Args:
        step: the step.
        wall_time: when it ended.
        moments: of all rows.
        kept: of the accumulators that were measured, by their names in the table.
        metrics: the values of metrics by row of the table and name.
        vectors: of units, by row of the table and name.
        facts: of the step.
    """

    step: int
    wall_time: float
    moments: Array
    kept: Mapping[str, Array]
    metrics: Mapping[tuple[int, str], float]
    vectors: Mapping[tuple[int, str], Array]
    facts: StepFacts | None


class _Kept(NamedTuple):
    """Where the numbers of one accumulator of a plan are in those of the table.

    Args:
        rows: the accumulator with its rows in the plan.
        name: of the accumulator in the table.
        slots: the slot in the table of each row.
    """

    rows: AccumulatorRows
    name: str
    slots: NDArray[np.intp]


class _RowsAt(NamedTuple):
    """What an owner asks for when schedules are due.

    Args:
        is_between: whether only what is measured at every step is due.
        is_whole: whether all rows that are asked for are of the whole step, as the loss is.
        measured: whether each row of the plan is asked for; None if all are.
        own: the rows of the plan that are asked for.
        of_table: the row of the table of each of these.
    """

    is_between: bool
    is_whole: bool
    measured: NDArray[np.bool_] | None
    own: NDArray[np.intp]
    of_table: NDArray[np.intp]


class ShareViews:
    """Makes step views of the rows of one owner, and carries what its statistics need from step to step.

    Args:
        share: of the owner.
        table: the table of all owners.
        stage: the stage of the views.
        structure: of the model; None for views without it.
    """

    def __init__(self, share: Share, table: Table, stage: str, structure: Structure | None) -> None:
        self._share = share
        self._table = table
        self._stage = stage
        self._structure = structure
        plan = share.plan
        self._global_numbers = GlobalNumbers(plan.index) if share.writes_global else None
        self._is_whole = len(share.part.rows) == len(table.sections.kept[0].rows) and _is_identity(share.part.rows)
        self._at: dict[Due, _RowsAt] = {}
        self._neutral = np.tile(MOMENTS.neutral().numpy(), (len(share.part.rows), 1))
        self._kept = [self._located(each) for each in plan.kept]
        # By accumulator: the averages that it continues from step to step, and the rows whose averages a rule requests.
        self._histories: dict[str, History] = {}
        self._following: dict[str, NDArray[np.bool_]] = {}
        for each in plan.kept:
            asked = np.isin(each.rows, plan.index.rows_with(each.accumulator.followed.__contains__))
            history = each.accumulator.history(asked)
            if history is not None:
                self._histories[each.accumulator.name], self._following[each.accumulator.name] = history, asked

    def _located(self, kept: AccumulatorRows) -> _Kept:
        part, name = self._share.part, kept.accumulator.name
        known = part.names.get(name, name)
        slots = {row: slot for slot, row in enumerate(self._table.rows_of(known))}
        return _Kept(kept, known, np.array([slots[int(part.rows[row])] for row in kept.rows], dtype=np.intp))

    def view(self, numbers: TableNumbers, due: Due, reports: Mapping[str, float], *, is_last: bool) -> StepView:
        """The view of a step at which schedules of the owner were due.

        Args:
            numbers: of the table.
            due: the schedules of the plan that were due.
            reports: of transforms, and of the cost of watching.
            is_last: whether no other view is made of these numbers, so that this one may keep their arrays.
        """
        plan, part = self._share.plan, self._share.part
        is_between, is_whole, measured, own_rows, table_rows = self._rows_at(due)
        is_own = self._is_whole and is_last
        if measured is None:
            moments = numbers.moments if is_own else numbers.moments[part.rows]
        else:
            moments = self._neutral.copy()
            moments[own_rows] = numbers.moments[table_rows]
        of_step = () if is_between else self._kept
        named = {each.rows.accumulator.name: self._numbers_of(each, numbers, due, measured, is_own) for each in of_step}
        for name, history in self._histories.items() if named else ():
            own = next(list(each.rows) for each in plan.kept if each.accumulator.name == name)
            states = RowStates({name: named[name], MOMENTS.name: moments[own]}.__getitem__, self._table.ranks)
            named[name] = history.update(states)
        metrics = {(row, name): value for row, name, value in self._metrics(numbers, measured)}
        if plan.groups:
            moments = _with_groups(plan, moments)
        for array in (moments, *named.values()):
            array.flags.writeable = False
        summaries: dict[str, float] = {}
        if self._global_numbers is not None:
            of_rows = self._global_numbers
            summaries = of_rows.of_whole(moments) if is_whole and not named else of_rows(moments, _noise_scale(named))
        return StepView(
            step=numbers.step,
            stage=self._stage,
            wall_time=numbers.wall_time,
            rows=plan.index,
            moments=moments,
            summaries={**summaries, **reports},
            due=due,
            kept=named,
            metrics=metrics,
            vectors=self._vectors(numbers, measured),
            ranks=self._table.ranks,
            facts=numbers.facts,
            structure=self._structure,
            is_between=is_between,
        )

    def _rows_at(self, due: Due) -> _RowsAt:
        """The rows that the owner has asked for at a step; another owner may have had more of them measured."""
        if due not in self._at:
            plan, part = self._share.plan, self._share.part
            measured = None if self._stage != "train" else part.measured_at(due)
            if measured is not None and measured.all():
                measured = None
            own = np.flatnonzero(measured if measured is not None else np.ones(len(part.rows), dtype=np.bool_))
            is_whole = all(plan.rows[row].tensor in WHOLE for row in own.tolist())
            self._at[due] = _RowsAt(plan.is_between(due), is_whole, measured, own, part.rows[own])
        return self._at[due]

    def _numbers_of(
        self, kept: _Kept, numbers: TableNumbers, due: Due, measured: NDArray[np.bool_] | None, is_own: bool
    ) -> Array:
        """The numbers of an accumulator of the plan; neutral where the owner has not asked for them at this step.

        `is_own` says that the view may keep the arrays of the table.
        """
        accumulator, rows = kept.rows.accumulator, kept.rows.rows
        asked = self._share.plan.on_request_at(due).get(accumulator.name) if accumulator.on_request else None
        if kept.name not in numbers.kept or (asked is not None and not asked):
            return no_numbers(len(rows), accumulator.width)
        is_due = np.array([row in asked for row in rows], dtype=np.bool_) if asked is not None else None
        if is_due is None and measured is not None:
            is_due = measured[list(rows)]
        array = numbers.kept[kept.name]
        if is_due is None or is_due.all():
            return array if is_own else array[kept.slots]
        own: Array = array[kept.slots]
        own[~is_due] = accumulator.neutral().numpy()
        return own

    def _metrics(self, numbers: TableNumbers, measured: NDArray[np.bool_] | None) -> list[tuple[int, str, float]]:
        """The row and the name in the plan, and the value, of each metric."""
        part = self._share.part
        found: list[tuple[int, str, float]] = []
        for row in part.plan.rows if numbers.metrics else ():
            for name, user in row.users.items():
                value = numbers.metrics.get((int(part.rows[row.index]), part.names.get(name, name)))
                if user.is_metric and value is not None and (measured is None or measured[row.index]):
                    found.append((row.index, name, value))
        return found

    def _vectors(self, numbers: TableNumbers, measured: NDArray[np.bool_] | None) -> dict[tuple[int, str], Array]:
        rows, row_of = self._share.plan.rows, self._share.part.row_of
        found: dict[tuple[int, str], Array] = {}
        for (of_table, name), values in numbers.vectors.items():
            row = row_of.get(of_table)
            units = None if row is None else rows[row].units
            if row is not None and units is not None and units.vectors and (measured is None or measured[row]):
                found[row, name] = values
        return found

    def averages(self) -> dict[str, list[float]]:
        """The averages from which the noise scale is computed, by row."""
        return {key: history.state(slot) for key, (history, slot) in self._followed.items()}

    def continue_from(self, saved: Mapping[str, Averages]) -> None:
        """Continue from the averages of a checkpoint; those of new rows start empty, with one warning."""
        rows = self._followed
        for key, (history, slot) in rows.items():
            history.load(slot, saved.get(key))
        changes = [f"{_described(key)} starts again" for key in rows if saved and key not in saved]
        changes += [f"{_described(key)} is gone" for key in saved if key not in rows]
        if changes:
            warnings.warn(f"the rows of noise_scale changed since the checkpoint: {', '.join(changes)}", stacklevel=2)

    @property
    def _followed(self) -> dict[str, tuple[History, int]]:
        """The history and the slot of each row that has averages, by the name of the row in a checkpoint."""
        plan = self._share.plan
        rows = {each.accumulator.name: each.rows for each in plan.kept}
        return {
            f"{plan.index.tensors[row]}/{plan.index.names[row]}": (history, slot)
            for name, history in self._histories.items()
            for slot, row in enumerate(rows[name])
            if self._following[name][slot]
        }


def _is_identity(rows: Sequence[int] | NDArray[np.intp]) -> bool:
    return bool((np.asarray(rows) == np.arange(len(rows))).all())


def _noise_scale(kept: Mapping[str, Array]) -> float:
    """The noise scale over all rows that keep it; NaN where there are none."""
    pairs = kept.get("pairs")
    return math.nan if pairs is None else float(noise_scale(pairs.sum(0, keepdims=True))[0])


def _with_groups(plan: Plan, moments: Array) -> Array:
    """The moments of the rows, followed by those of the groups."""
    members = [i for group in plan.groups for i in group.members]
    group_of = [group.index - len(plan.rows) for group in plan.groups for _ in group.members]
    merged = merge_by_index(torch.from_numpy(moments[members]), torch.tensor(group_of, device="cpu"), len(plan.groups))
    return np.concatenate([moments, merged.numpy()])


def check_averages(averages: Mapping[str, Averages]) -> None:
    """Refuse averages of a checkpoint that no row can have: they are finite, or both NaN if the row has no value yet.

    Raises:
        RuleError: the message names the row.
    """
    for key, pair in averages.items():
        if not (all(map(math.isfinite, pair)) or all(map(math.isnan, pair))):
            raise RuleError(f"the averages of {key} must be finite, got {pair}")


def _described(key: str) -> str:
    return " of ".join(key.split("/", 1))
