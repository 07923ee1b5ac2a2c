"""A run back from its event files, nothing down-sampled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
from tensorboard.util.tensor_util import make_ndarray

from lightning_hooks.errors import RuleError, did_you_mean
from lightning_hooks.tensorboard.events import PLUGIN, ROWS, TABLE

Floats = NDArray[np.float64]
Steps = NDArray[np.int64]


@dataclass(frozen=True)
class Table:
    """One statistic of one tensor over a run.

    Args:
        names: the names of the rows.
        steps: int64 [T].
        values: float64 [T, rows]; NaN where a row was not measured.
    """

    names: tuple[str, ...]
    steps: Steps
    values: Floats

    def __getitem__(self, name: str) -> Floats:
        """The values of one row over the steps.

        Raises:
            RuleError: no such row.
        """
        if name not in self.names:
            raise RuleError(f"no row {name!r}{did_you_mean(name, self.names)}")
        return self.values[:, self.names.index(name)]


@dataclass(frozen=True)
class Run:
    """The logged data of a run; made by `read_run`.

    Args:
        path: the directory or file that was read.
        scalars: tag to (steps int64 [T], values float64 [T]).
        histograms: tag to a list of (step, right bucket edges, counts).
        texts: tag to the last text.

    Example:
        >>> Run(Path("runs/digits"), {"loss": (np.array([0, 1]), np.array([0.7, 0.6]))}).scalars["loss"][1]
        array([0.7, 0.6])
    """

    path: Path
    scalars: dict[str, tuple[Steps, Floats]]
    histograms: dict[str, list[tuple[int, Floats, Floats]]] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    _vectors: dict[tuple[str, str, str], dict[int, Floats]] = field(default_factory=dict, repr=False)
    _rows: dict[str, tuple[str, ...]] = field(default_factory=dict, repr=False)

    def __repr__(self) -> str:
        """The path and the number of tags and tables."""
        return f"<Run {str(self.path)!r}: {len(self.scalars)} scalar tags, {len(self.tensors())} tables>"

    def tensors(self) -> list[tuple[str, str]]:
        """Every (tensor, statistic) that has a table."""
        return list(dict.fromkeys((tensor, stat) for tensor, stat, _ in self._vectors))

    def table(self, tensor: str, stat: str) -> Table:
        """The table of one statistic; if the list of rows changed during the run, rows are joined by name.

        Args:
            tensor: for example `grad`, preceded by the monitor's prefix.
            stat: for example `norm`; `count` is the number of measured elements.

        Raises:
            RuleError: no such table.
        """
        if (tensor, stat) not in self.tensors():
            known = [f"{t} {s}" for t, s in self.tensors()]
            raise RuleError(f"no table {f'{tensor} {stat}'!r} in {self.path}{did_you_mean(f'{tensor} {stat}', known)}")
        pieces = [(self._rows[h], steps) for (t, s, h), steps in self._vectors.items() if (t, s) == (tensor, stat)]
        names = tuple(dict.fromkeys(name for row_list, _ in pieces for name in row_list))
        column = {name: i for i, name in enumerate(names)}
        all_steps = sorted({step for _, steps in pieces for step in steps})
        position = {step: i for i, step in enumerate(all_steps)}
        values = np.full((len(all_steps), len(names)), np.nan)
        for row_list, steps in pieces:
            columns = [column[name] for name in row_list]
            for step, vector in steps.items():
                values[position[step], columns] = vector
        return Table(names, np.array(all_steps, dtype=np.int64), values)


def read_run(path: str | Path) -> Run:
    """Read the event files of a run.

    Args:
        path: the log directory of the run, or one event file.

    Raises:
        RuleError: the path does not exist, or contains no event file.
    """
    where = Path(path)
    if not where.exists():
        raise RuleError(f"there is no run at {str(path)!r}")
    files = [where] if where.is_file() else sorted(where.glob("*tfevents*"))
    if not files:
        nested = sorted({str(found.parent) for found in where.rglob("*tfevents*")})
        hint = f"; there are runs in {', '.join(nested[:5])}" if nested else ""
        raise RuleError(f"no event file in {str(path)!r}{hint}")
    scalars: dict[str, dict[int, float]] = {}
    histograms: dict[str, list[tuple[int, Floats, Floats]]] = {}
    texts: dict[str, str] = {}
    vectors: dict[tuple[str, str, str], dict[int, Floats]] = {}
    rows: dict[str, tuple[str, ...]] = {}
    plugin_of: dict[str, str] = {}
    for event in _events(files):
        for value in event.summary.value:
            kind = value.WhichOneof("value")
            if value.HasField("metadata"):
                plugin_of.setdefault(value.tag, value.metadata.plugin_data.plugin_name)
            if kind == "simple_value":
                scalars.setdefault(value.tag, {})[event.step] = value.simple_value
            elif kind == "histo":
                limits, counts = np.array(value.histo.bucket_limit), np.array(value.histo.bucket)
                histograms.setdefault(value.tag, []).append((event.step, limits, counts))
            elif kind == "tensor" and plugin_of.get(value.tag) == PLUGIN:
                _take_table(value, event.step, vectors, rows)
            elif kind == "tensor" and plugin_of.get(value.tag) == "text":
                texts[value.tag] = b"\n".join(make_ndarray(value.tensor).flatten().tolist()).decode(errors="replace")
    return Run(where, {tag: _arrays(points) for tag, points in scalars.items()}, histograms, texts, vectors, rows)


def _events(files: list[Path]) -> Iterator[Any]:
    for file in files:
        # The loader ends at a record that a killed run left unfinished.
        yield from (event for event in LegacyEventFileLoader(str(file)).Load() if event.HasField("summary"))


def _take_table(
    value: Any, step: int, vectors: dict[tuple[str, str, str], dict[int, Floats]], rows: dict[str, tuple[str, ...]]
) -> None:
    tensor, kind, digest = value.tag.rsplit("/", 2)  # a prefix may hold slashes, so from the right
    array = make_ndarray(value.tensor)
    if (tensor, kind) == (TABLE, ROWS):
        rows[digest] = tuple(name.decode() for name in array.tolist())
    else:
        vectors.setdefault((tensor.removeprefix(f"{TABLE}/"), kind, digest), {})[step] = array.astype(np.float64)


def _arrays(points: dict[int, float]) -> tuple[Steps, Floats]:
    steps = sorted(points)
    return np.array(steps, dtype=np.int64), np.array([points[step] for step in steps])
