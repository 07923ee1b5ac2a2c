"""How what belongs to parameters gets into a table: many tensors in one call, and one by one what that leaves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import repeat
from operator import is_not
from typing import Any, Protocol

from torch import Tensor

from lightning_hooks.engine.monitor.param_rows import DueRows
from lightning_hooks.engine.participant import PhaseMemo
from lightning_hooks.stats.measurement import Measurement, UnscaledMeasurement, measure_all
from lightning_hooks.stats.table import Table


class Sink(Protocol):
    """Whose table it is."""

    table: Table
    failed: bool

    def fail(self, error: Exception) -> None:
        """What to do about an error of ours."""

    def take(self, row: int, look: Measurement, *, last: bool) -> None:
        """Put a measurement into a row."""


def read(
    sink: Sink,
    due: DueRows,
    tensor: str,
    memo: PhaseMemo,
    value_of: Callable[[Any], Any] | None = None,
    scale: Tensor | None = None,
) -> None:
    """Set rows to a tensor of their parameters; measured once where several look, and divided by a loss scale.

    Args:
        sink: takes what is measured.
        due: parameters with their rows.
        tensor: which.
        memo: of the optimizer's step.
        value_of: from a parameter to its tensor, or None where there is none; by default the parameter itself.
        scale: by which the tensor is to be divided.
    """
    if not memo.shared and scale is None:
        read_alone(sink, due, list(due.parameters if value_of is None else map(value_of, due.parameters)))
        return
    rows: list[int] = []
    keys: list[tuple[int, str]] = []
    fresh: dict[tuple[int, str], Tensor] = {}
    for parameter, row in due:
        key = (id(parameter), tensor)
        if key not in memo.looks:
            value = parameter if value_of is None else value_of(parameter)
            if value is None:
                continue
            fresh[key] = value
        rows.append(row)
        keys.append(key)
    try:
        measured = measure_all(list(fresh.values()))
        if scale is not None:
            measured = [UnscaledMeasurement(look, scale) for look in measured]
        memo.looks.update(zip(fresh, measured, strict=True))
        looks = [memo.looks[key] for key in keys]
        left = [] if sink.failed else sink.table.put_all(rows, looks)
    except Exception as error:
        sink.fail(error)
        return
    for position in left:
        sink.take(rows[position], looks[position], last=True)


def read_changes(sink: Sink, due: DueRows, before: dict[int, Tensor], change: Callable[[Any], Any]) -> None:
    """Set rows to what parameters are more than they were, without making the differences where that can be avoided.

    Args:
        sink: takes what is measured.
        due: parameters with their rows.
        before: what they were, by the id of the parameter.
        change: from a parameter to the difference.
    """
    due, earlier = _present(due, list(map(before.get, map(id, due.parameters))))
    values: Sequence[Tensor] = due.parameters
    _set_alone(sink, due, values, earlier, change)


def read_alone(sink: Sink, due: DueRows, values: list[Tensor | None]) -> None:
    """Set rows to tensors at which nobody else looks.

    Args:
        sink: takes what is measured.
        due: the rows.
        values: what is to be measured into each of them; None where there is nothing.
    """
    due, seen = _present(due, values)
    _set_alone(sink, due, seen)


def _present(due: DueRows, values: list[Tensor | None]) -> tuple[DueRows, list[Tensor]]:
    """The rows for which there is something, and what."""
    if not all(map(is_not, values, repeat(None))):
        kept = [i for i, value in enumerate(values) if value is not None]
        due, values = due.only(kept), [values[i] for i in kept]
    return due, values  # type: ignore[return-value]


def _set_alone(
    sink: Sink,
    due: DueRows,
    values: Sequence[Tensor],
    taken_away: Sequence[Tensor] | None = None,
    value_of: Callable[[Any], Any] = lambda value: value,
) -> None:
    """Measure straight into rows; what is left, by a measurement of what `value_of` makes of it."""
    try:
        left = [] if sink.failed else sink.table.measure_all(due.places, values, taken_away)
        if not left:
            return
        rows = due.rows
        looks = measure_all([value_of(values[position]) for position in left])
        rest = sink.table.put_all([rows[position] for position in left], looks)
    except Exception as error:
        sink.fail(error)
        return
    for place in rest:
        sink.take(rows[left[place]], looks[place], last=True)
