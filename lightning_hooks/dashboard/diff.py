"""Compares two runs: the first step and the rows at which they differ, and by how much."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from lightning_hooks.comparing.exact import (
    CommonRows,
    CommonSteps,
    Indices,
    bits_differ,
    common_rows,
    firsts,
    relative,
)
from lightning_hooks.dashboard.api import to_json
from lightning_hooks.dashboard.local_run import LocalRun
from lightning_hooks.dashboard.merging import Reader
from lightning_hooks.dashboard.source import CHUNK, common_points, windows_of
from lightning_hooks.dashboard.tree import Node, tree
from lightning_hooks.errors import RuleError, listed, printable
from lightning_hooks.tensorboard.run_files import runs_below

# The value of `plan.rows.LOSS`, repeated because the import of that module loads torch.
_LOSS: Final = "loss"
_SHOWN: Final = 20  # the most rows in the text form


@dataclass(frozen=True)
class RowDifference:
    """A row whose values differ.

    Args:
        tensor: the tensor of the table, with the prefix of the monitor.
        stat: the statistic of the table.
        name: the name of the row.
        step: the first step at which the values differ; of a window of steps its last one.
        a: the value at this step in the first run; None if it was not measured.
        b: the value at this step in the second run; None if it was not measured.
        relative: the difference divided by the greater magnitude; None if a value is NaN or was not measured.
        first_step: the first step of the window, if both runs hold these steps in one window; None for a single step.
    """

    tensor: str
    stat: str
    name: str
    step: int
    a: float | None
    b: float | None
    relative: float | None
    first_step: int | None = None


@dataclass(frozen=True)
class Difference:
    """The result of `diff`.

    Args:
        steps: the number of steps that both runs have.
        rows: the number of rows that were compared.
        first: the first step at which the runs differ; None if they are equal.
        parts: the rows that differ, sorted by their first step, then in the order of execution.
        only: messages about tables, rows and steps that only one of the runs has.
    """

    steps: int
    rows: int
    first: int | None = None
    parts: list[RowDifference] = field(default_factory=list)
    only: list[str] = field(default_factory=list)

    @property
    def equal(self) -> bool:
        """Whether both runs have the same tables, rows and steps, and all values are equal to the last bit."""
        return self.first is None and not self.only

    def __str__(self) -> str:
        """The result as text for a terminal."""
        lines = list(self.only)
        if self.first is None:
            lines.append(f"equal to the last bit over {self.steps} steps × {self.rows} rows")
            return "\n".join(map(printable, lines))
        differ: dict[tuple[str, str], RowDifference] = {}
        for row in self.parts:
            differ.setdefault((row.tensor, row.name), row)
        at_first = [row for row in differ.values() if row.step == self.first]
        window = next((row.first_step for row in at_first if row.first_step is not None), None)
        where = "there" if window is None else f"in the window of steps {window} to {self.first}"
        lines.append(
            f"equal before step {self.first if window is None else window}; {where} {len(at_first)} of {self.rows} rows "
            f"differ ({len(differ)} over {self.steps} steps), in the order of execution:"
        )
        shown = [*at_first[:_SHOWN], *(row for row in at_first[_SHOWN:] if _is_loss(row.tensor))]
        for row in shown:
            relative = "" if row.relative is None else f", a relative difference of {row.relative:.1e}"
            lines.append(f"  {_of(row)}: {row.stat} {_number(row.a)} and {_number(row.b)}{relative}")
        if len(at_first) > len(shown):
            lines.append(f"  and {len(at_first) - len(shown)} more")
        return "\n".join(map(printable, lines))

    def json(self) -> str:
        """The result as JSON; NaN and infinite values, which JSON does not have, are `{"float": "nan"}` and so on."""
        return to_json(asdict(self) | {"equal": self.equal}).decode()


def diff(a: Path, b: Path, progress: Callable[[int, int], None] = lambda done, total: None) -> Difference:
    """Compare the tables of two runs bit by bit.

    Args:
        a: the folder of the first run, or one event file.
        b: the folder of the second run, or one event file.
        progress: called before each table with the number of tables that are done, and of all tables.

    Raises:
        RuleError: a path is no run or its run has no table, or the two runs have no table, no row or no step in common.
    """
    first, second = _open(a), _open(b)
    tables = [table for table in first.tables() if table in second.tables()]
    if not tables:
        raise RuleError(f"{str(a)!r} and {str(b)!r} have no table of the same tensor and statistic")
    only = [*_only(first, second, f"only in {a}"), *_only(second, first, f"only in {b}")]
    # Each difference stands behind its sort key: the first step at which the runs differ, the phase of the step to which its
    # tensor belongs, and the place of its row in the order of execution (see `_order`).
    keyed: list[tuple[int, int, int, RowDifference]] = []
    steps: set[int] = set()
    rows: set[tuple[str, str]] = set()
    for done, (tensor, stat) in enumerate(tables):
        progress(done, len(tables))
        common = common_points(first, second, tensor, stat)
        shared = common_rows(first.rows(tensor, stat), second.rows(tensor, stat))
        steps.update(common.steps.tolist())
        rows.update((tensor, name) for name in shared.names)
        turn = _turns(first, tensor, stat)
        found = _differences(first, second, tensor, stat, shared, common)
        keyed += [(row.step, *_order(tensor, turn[row.name]), row) for row in found]
    if not rows:
        raise RuleError(_no_common_row(a, first, b, second))
    if not steps:
        raise RuleError(f"{str(a)!r} and {str(b)!r} have no step in common")
    if all(_is_loss(tensor) for tensor, _ in rows) and not (_names(first) | _names(second) <= {_LOSS}):
        only = [f"{_no_common_row(a, first, b, second)}; only the loss is compared", *only]
    ordered = [row for *_, row in sorted(keyed, key=lambda each: each[:3])]
    return Difference(len(steps), len(rows), ordered[0].step if ordered else None, ordered, only)


def _open(path: Path) -> LocalRun:
    if not path.exists():
        raise RuleError(f"there is no run at {str(path)!r}")
    run = LocalRun(path)
    if not run.tables():
        problems = "; ".join(["", *run.problems()])
        raise RuleError(f"{str(path)!r} has no table of lightning_hooks{problems or runs_below(path)}")
    return run


def _only(run: LocalRun, other: LocalRun, where: str) -> Iterator[str]:
    """Messages, beginning with `where`, about the tables, rows and steps of a run that the other run lacks."""
    missing = [f"{tensor} {stat}" for tensor, stat in run.tables() if (tensor, stat) not in other.tables()]
    if missing:
        yield f"{where}: {', '.join(missing)}"
    shared = [table for table in run.tables() if table in other.tables()]
    rows = {name for table in shared for name in {*run.rows(*table)} - {*other.rows(*table)}}
    if rows:
        yield f"{where}: {_several(rows, 'row')}, such as {', '.join(sorted(rows)[:3])}"
    steps = {step for table in shared for step in np.setdiff1d(run.steps(*table), other.steps(*table)).tolist()}
    # Steps of a window of the other run are there, but not as single steps.
    merged = {window for table in shared for window in windows_of(other, *table)}
    held = {step for step in steps if any(first <= step <= last for first, last in merged)}
    if alone := steps - held:
        yield f"{where}: {_several(alone, 'step')}, {_span(alone)}"
    if held:
        yield (
            f"{where}: {_several(held, 'view')} of steps, {_span(held)}, that the other run holds in windows of other lengths; "
            "they are not compared"
        )


def _span(steps: Collection[int]) -> str:
    first, last = min(steps), max(steps)
    return str(first) if first == last else f"from {first} to {last}"


def _no_common_row(a: Path, first: LocalRun, b: Path, second: LocalRun) -> str:
    """The sentence that two runs are of different models."""

    def rows(path: Path, run: LocalRun) -> str:
        names = sorted(_names(run) - {_LOSS})
        return f"{str(path)!r} has {_several(names, 'row')}{f', such as {listed(names, 3)}' if names else ''}"

    return f"the runs share no row of a layer or parameter: {rows(a, first)}; {rows(b, second)}"


def _names(run: LocalRun) -> set[str]:
    """The names of all rows of a run."""
    return {name for table in run.tables() for name in run.rows(*table)}


def _several(items: Collection[object], noun: str) -> str:
    return f"{len(items)} {noun}{'' if len(items) == 1 else 's'}"


def _turns(run: LocalRun, tensor: str, stat: str) -> Mapping[str, int]:
    """Row name to its index in the order of execution."""
    names = run.rows(tensor, stat)
    leaves = [node.row for node in tree(names, run.about()) if node.row is not None]
    return {names[row]: turn for turn, row in enumerate(leaves)}


def _order(tensor: str, turn: int) -> tuple[int, int]:
    """The sort key of a row within a step: the phase of its tensor, then the order of execution in that phase.

    The phases are parameters, forward pass, loss, backward pass (from the last layer to the first), final gradients, update,
    state.
    """
    if _is_loss(tensor):
        return 2, turn
    phases = ("final_grad", 4), ("grad", 3), ("update", 5), ("state.", 6), ("input", 1), ("output", 1), ("param", 0)
    phase = next((phase for word, phase in phases if word in tensor), 1)
    return phase, -turn if phase == 3 else turn


def _is_loss(tensor: str) -> bool:
    """Whether a table, whose tensor may have the prefix of a monitor, is that of the loss."""
    return tensor.rpartition("/")[2] == _LOSS


def _of(row: RowDifference) -> str:
    return row.tensor if _is_loss(row.tensor) else f"{row.tensor} of {row.name}"


def _differences(
    first: LocalRun, second: LocalRun, tensor: str, stat: str, rows: CommonRows, common: CommonSteps
) -> Iterator[RowDifference]:
    """For each row that differs, the first step at which it does."""
    names = rows.names
    one = _reader(first, tensor, stat, names, rows.first)
    other = _reader(second, tensor, stat, names, rows.second)
    has_differed = np.zeros(len(names), dtype=np.bool_)
    begins = first.first_steps(tensor, stat)[common.first]
    for at in range(0, len(common.steps), CHUNK):
        chunk = slice(at, at + CHUNK)
        a, b = one.at(common.first[chunk]), other.at(common.second[chunk])
        differs = bits_differ(a.values, b.values, a.measured, b.measured)
        for row, i in zip(*(each.tolist() for each in firsts(differs & ~has_differed)), strict=True):
            x, y = (float(v[i, row]) if measured[i, row] else None for v, measured, _ in (a, b))
            step, begun = int(common.steps[at + i]), int(begins[at + i])
            yield RowDifference(tensor, stat, names[row], step, x, y, relative(x, y), None if begun == step else begun)
        has_differed |= differs.any(0)


def _reader(run: LocalRun, tensor: str, stat: str, names: Sequence[str], rows: Indices) -> Reader:
    """A reader of some rows."""
    return Reader(run, tensor, stat, [Node(name, name, 0, row) for name, row in zip(names, rows.tolist(), strict=True)])


def _number(value: float | None) -> str:
    if value is None:
        return "not measured"
    return "NaN" if np.isnan(value) else f"{value:.9g}"
