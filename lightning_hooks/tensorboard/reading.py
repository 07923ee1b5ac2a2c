"""Reads a finished or growing run from its event files, at every logged step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.errors import RuleError, did_you_mean
from lightning_hooks.rules.fields import check_path
from lightning_hooks.tensorboard.local_tables import LocalTables
from lightning_hooks.tensorboard.messages import buckets, strings
from lightning_hooks.tensorboard.row_histograms import RowHistograms, tag_of
from lightning_hooks.tensorboard.run_files import runs_below
from lightning_hooks.tensorboard.run_index import RunIndex

if TYPE_CHECKING:
    import pandas as pd

    from lightning_hooks.records.step_view import StepView
    from lightning_hooks.tensorboard.views import ReadMonitor

Floats = NDArray[np.float64]
Steps = NDArray[np.int64]


@dataclass(frozen=True)
class Table:
    """One statistic of one tensor over a run.

    Args:
        names: the names of the rows.
        steps: ascending, int64 [T].
        values: float64 [T, rows]; NaN where a row was not measured.
        first_steps: the first step that each line holds, int64 [T]: that of a window of steps, of others the same as `steps`.
            A norm of a window is the root mean square of the norms of its steps; `nonfinite` is their total. Default: `steps`.
    """

    names: tuple[str, ...]
    steps: Steps
    values: Floats
    first_steps: Steps = field(default_factory=lambda: np.empty(0, dtype=np.int64))

    def __post_init__(self) -> None:
        if len(self.first_steps) != len(self.steps):
            object.__setattr__(self, "first_steps", self.steps)

    def __getitem__(self, name: str) -> Floats:
        """The values of one row over the steps, float64 [T].

        Raises:
            RuleError: the table has no such row.
        """
        if name not in self.names:
            raise RuleError(f"no row {name!r}{did_you_mean(name, self.names)}")
        return self.values[:, self.names.index(name)]


@dataclass(frozen=True)
class Run:
    """The logged data of a run; made by `read_run`.

    Args:
        path: the folder or event file that was read.
        scalars: tag to (steps int64 [T], values float64 [T]).
        histograms: of TensorBoard, tag to a list of (step, right bucket edges, counts); `histogram` has those of every row.
        texts: tag to the last text logged under it.

    Example:
        >>> Run(Path("runs/digits"), scalars={"loss": (np.array([0, 1]), np.array([0.7, 0.6]))}).scalars["loss"][1]
        array([0.7, 0.6])
    """

    path: Path
    _: KW_ONLY
    scalars: dict[str, tuple[Steps, Floats]]
    histograms: dict[str, list[tuple[int, Floats, Floats]]] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    _index: RunIndex | None = field(default=None, repr=False, compare=False)
    _tables: LocalTables | None = field(default=None, repr=False, compare=False)

    def __repr__(self) -> str:
        """The path and the number of tags and tables."""
        tables = [] if self._tables is None else self._tables.tables()
        return f"<Run {str(self.path)!r}: {len(self.scalars)} scalar tags, {len(tables)} tables>"

    def tensors(self, prefix: str | None = None) -> list[tuple[str, str]]:
        """The (tensor, statistic) of every table of a monitor.

        Args:
            prefix: of the monitor, with or without `watch/`; None for the first monitor.
        """
        return [] if self._tables is None else self._tables.tables_of(self._tables.prefix_of(prefix))

    def table(self, tensor: str, stat: str, prefix: str | None = None) -> Table:
        """The table of one statistic, read from the files now.

        If the list of rows changed during the run, the table has all rows, and rows of equal names are joined.

        Args:
            tensor: for example `grad`.
            stat: for example `norm`; `count` is the number of measured elements.
            prefix: of the monitor, with or without `watch/`; None for the first monitor.

        Raises:
            RuleError: the run has no such table.
        """
        name = f"{'' if self._tables is None else self._tables.prefix_of(prefix)}{tensor}"
        if self._tables is None or not self._tables.has(name, stat):
            known = [f"{t} {s}" for t, s in self.tensors(prefix)]
            raise RuleError(f"no table {f'{tensor} {stat}'!r} in {self.path}{did_you_mean(f'{tensor} {stat}', known)}")
        steps = self._tables.steps(name, stat)
        values = self._tables.read(name, stat, 0, len(steps))
        return Table(self._tables.rows(name, stat), steps, values, self._tables.first_steps(name, stat))

    def histogram(self, tensor: str, name: str, prefix: str | None = None) -> list[tuple[int, Floats, Floats]]:
        """The histograms of one row as (step, right bucket edges, counts), read from the files now.

        Counts are exact, and the buckets are those of the statistic `histogram`, from the first to the last that holds an
        element, so that histograms of rows can be added up.

        Args:
            tensor: for example `grad`.
            name: of the row.
            prefix: of the monitor, with or without `watch/`; None for the first monitor.

        Raises:
            RuleError: the run has no such histograms.
        """
        stored = None if self._index is None else RowHistograms(self._index)
        tag = tag_of(f"{'' if self._tables is None else self._tables.prefix_of(prefix)}{tensor}", name)
        if self._index is None or stored is None or tag not in stored.tags:
            known = () if stored is None else stored.tags
            raise RuleError(f"no histograms {tag!r} of a row in {self.path}{did_you_mean(tag, known)}")
        return stored.read([tag], 1 << 62)[tag]

    def monitors(self, stage: str = "train") -> list[ReadMonitor]:
        """The monitors whose step views the run holds, in the order of the callbacks; empty for files of older versions.

        Args:
            stage: `train`, `validate`, `test` or `predict`.
        """
        from lightning_hooks.tensorboard.views import read_monitors

        return [] if self._tables is None else read_monitors(self._tables, stage)

    def views(self, stage: str = "train", prefix: str | None = None, monitor: int = 0) -> Iterator[StepView]:
        """The step views of a monitor, as its consumers got them, with numbers rounded to float32.

        Args:
            stage: `train`, `validate`, `test` or `predict`.
            prefix: of the monitor, with or without `watch/`; None for the first monitor of the stage.
            monitor: index of the monitor among those with the prefix, in the order of the callbacks.

        Raises:
            RuleError: the run has no such monitor, or its files are from a version that did not store step views.
        """
        from lightning_hooks.tensorboard.views import read_views

        if self._tables is None or self._index is None:
            raise RuleError(f"{self.path} has no step views")
        return read_views(self._index, self._tables, stage, prefix, monitor)

    def to_pandas(self, tensor: str | None = None, stat: str | None = None, prefix: str | None = None) -> pd.DataFrame:
        """The tables of a monitor as a data frame.

        Args:
            tensor: only tables of this tensor.
            stat: only tables of this statistic.
            prefix: of the monitor, with or without `watch/`; None for the first monitor.

        Returns:
            A frame with the steps as its index and (tensor, statistic, name) as its columns.

        Raises:
            ImportError: pandas is not installed.
            RuleError: the run has no such table.
        """
        import pandas as pd

        chosen = [(t, s) for t, s in self.tensors(prefix) if tensor in (None, t) and stat in (None, s)]
        if not chosen:
            self.table(tensor or "", stat or "", prefix)  # always raises here, with the names of similar tables
        frames = []
        for pair in chosen:
            table = self.table(*pair, prefix)
            columns = pd.MultiIndex.from_tuples([(*pair, name) for name in table.names], names=["tensor", "stat", "name"])
            frames.append(pd.DataFrame(table.values, index=pd.Index(table.steps, name="step"), columns=columns))
        return pd.concat(frames, axis=1)

    def _repr_html_(self) -> str:
        """The report of the run, for notebooks."""
        import html

        from lightning_hooks.dashboard.report import report

        if self._tables is None or not self._tables.tables():
            return html.escape(repr(self))
        # Escape to ASCII. In a document of another encoding, other characters would change the script, and the browser would
        # refuse to run it because its hash no longer matches the policy of the page.
        page = html.escape(report(self.path), quote=True).encode("ascii", "xmlcharrefreplace").decode()
        style = "width: 100%; height: 640px; border: 1px solid #888"
        return f'<iframe srcdoc="{page}" style="{style}" sandbox="allow-scripts allow-downloads"></iframe>'


def read_run(path: str | Path) -> Run:
    """Read the event files of a run.

    Args:
        path: the log directory of the run, or one event file.

    Raises:
        RuleError: the path does not exist, or contains no event file.
    """
    check_path("path", path)
    run_path = Path(path)
    if not run_path.exists():
        raise RuleError(f"there is no run at {str(path)!r}")
    index = RunIndex(run_path)
    if not index.files:
        raise RuleError(f"no event file in {str(path)!r}{'; '.join(['', *index.problems()]) or runs_below(run_path)}")
    scalars: dict[str, dict[int, float]] = {}
    histograms: dict[str, dict[int, tuple[Floats, Floats]]] = {}
    texts: dict[str, str] = {}
    for file in index.files:
        steps = file.steps
        for tag, events, values in file.numbers():
            scalars.setdefault(tag, {}).update(zip(steps[events].tolist(), values.tolist(), strict=True))
        for event, value, payload in file.rest():
            step = int(steps[event])
            if value.kind == "number":
                scalars.setdefault(value.tag, {})[step] = float(np.frombuffer(payload, dtype="<f4")[0])
            elif value.kind == "histogram":
                histograms.setdefault(value.tag, {})[step] = buckets(payload)
            elif value.kind == "strings" and file.tags[value.tag][1] == "text":
                texts[value.tag] = "\n".join(strings(payload))
    return Run(
        run_path,
        scalars={tag: _arrays(points) for tag, points in scalars.items()},
        histograms={tag: [(step, *points[step]) for step in sorted(points)] for tag, points in histograms.items()},
        texts=texts,
        _index=index,
        _tables=LocalTables(index),
    )


def _arrays(points: dict[int, float]) -> tuple[Steps, Floats]:
    steps = sorted(points)
    return np.array(steps, dtype=np.int64), np.array([points[step] for step in steps])
