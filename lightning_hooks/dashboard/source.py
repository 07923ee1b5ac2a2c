"""Reads runs for the page: from event files in a local folder, or through TensorBoard's data provider if it is not local."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.dashboard import REMOTE_STEPS
from lightning_hooks.dashboard.facts import about_rows, json_object
from lightning_hooks.dashboard.findings import checks_of, has_ended, shown_findings, shown_summary
from lightning_hooks.health.journal import FINDINGS, SUMMARY
from lightning_hooks.stats.stored import StoredRows
from lightning_hooks.tensorboard.local_tables import LocalTables, asked_of, ranks_of, read_facts
from lightning_hooks.tensorboard.messages import buckets, strings
from lightning_hooks.tensorboard.run_index import ABOUT, FACTS, FOUND, INDEX, PLUGIN, ROWS, TABLE, RunIndex, is_table, table_of
from lightning_hooks.tensorboard.tables import Tables

Steps = NDArray[np.int64]
Values = NDArray[np.float32]
Floats = NDArray[np.float64]

_ABOUT: Final = f"{TABLE}/{ABOUT}/"
_LISTS: Final = f"{TABLE}/{ROWS}/"
_INDEX: Final = f"{TABLE}/{INDEX}/"
_FOUND: Final = f"{FOUND}/"


class RunSource(Protocol):
    """The interface through which the page reads one run."""

    @property
    def version(self) -> int:
        """A number that changes when the run has grown."""

    @property
    def history(self) -> int:
        """A number that changes when the values of earlier steps may have changed."""

    def refresh(self) -> None:
        """Read what was written since the last call."""

    def tables(self) -> list[tuple[str, str]]:
        """The (tensor, statistic) of every table."""

    def rows(self, tensor: str, stat: str) -> tuple[str, ...]:
        """The names of the rows of a table."""

    def steps(self, tensor: str, stat: str) -> Steps:
        """The steps of a table, ascending."""

    def read(self, tensor: str, stat: str, first: int, last: int) -> Floats:
        """The values at `steps(tensor, stat)[first:last]`, float64 [steps, rows]; NaN where a row was not measured."""

    def stored(self, tensor: str, stat: str, first: int, last: int) -> tuple[StoredRows, StoredRows | None]:
        """The stored columns from which a table is computed; see `Tables.stored`."""

    def scalar_tags(self) -> list[str]:
        """The tags of all scalars."""

    def scalar(self, tag: str) -> tuple[Steps, Floats]:
        """The steps and the values of a scalar."""

    def histogram_tags(self) -> list[str]:
        """The tags of all histograms."""

    def histograms(self, tags: Sequence[str], steps: int) -> dict[str, list[tuple[int, Floats, Floats]]]:
        """Histograms by tag, each at no more than `steps` evenly chosen steps as (step, right edges, counts)."""

    def about(self) -> Mapping[str, Any]:
        """Row name to `type` (class of the module), `shape`, and `order` (index in the order of execution)."""

    def row_indices(self) -> Sequence[Mapping[str, Any]]:
        """The row indices of the step views of the run, from JSON, unchecked."""

    def saved_facts(self, prefix: str) -> list[tuple[int, str]]:
        """The steps at which facts of the training changed, ascending, each with the changes as JSON."""

    def findings(self) -> list[Mapping[str, Any]] | None:
        """The findings of health rules; None if the run has no file of findings."""

    def checks(self) -> Mapping[str, Any] | None:
        """Which health rules looked at the run, see `checks_of`; None if nobody knows, as while the fit goes on."""

    @property
    def place(self) -> str | None:
        """The path of the run for a command on this machine; None if the run is not on it."""

    def problems(self) -> list[str]:
        """Messages about the parts of the run that could not be read."""


class LocalRun(LocalTables):
    """A run whose event files are in a local folder."""

    def __init__(self, path: Path) -> None:
        super().__init__(RunIndex(path))
        self.path = path
        self._written, self._findings_changed = self._written_findings(), 0
        # The version of the run for which the facts about rows were read, and the facts.
        self._cached_about: tuple[int, Mapping[str, Any]] | None = None

    @property
    def version(self) -> int:
        return self._index.version + self._findings_changed

    @property
    def history(self) -> int:
        """A number that changes when a resume began another file, or the run was deleted and started again."""
        return self._index.history

    def refresh(self) -> None:
        self._index.refresh()
        before, self._written = self._written, self._written_findings()
        self._findings_changed += before != self._written

    def _written_findings(self) -> tuple[tuple[int, int] | None, ...]:
        return tuple(_time_and_size(self.path / name) for name in (FINDINGS, SUMMARY))

    def scalar_tags(self) -> list[str]:
        return self._index.tags("number")

    def scalar(self, tag: str) -> tuple[Steps, Floats]:
        return self._index.numbers(tag)

    def histogram_tags(self) -> list[str]:
        return self._index.tags("histogram")

    def histograms(self, tags: Sequence[str], steps: int) -> dict[str, list[tuple[int, Floats, Floats]]]:
        read = self._index.histograms(tags, steps)
        return {tag: [(step, *buckets(payload)) for step, payload in points] for tag, points in read.items()}

    def about(self) -> Mapping[str, Any]:
        if self._cached_about is None or self._cached_about[0] != self.version:
            about: dict[str, Any] = {}
            for tag in self._index.tags("strings", PLUGIN):
                if tag.startswith(_ABOUT):
                    points = self._index.points(tag)
                    # Read the last point only, if the tag has any.
                    for i in range(len(points.steps))[-1:]:
                        about.update(about_rows(strings(self._index.payload(points, i))))
            self._cached_about = self.version, about
        return self._cached_about[1]

    def findings(self) -> list[Mapping[str, Any]] | None:
        try:
            text = _text_of(self.path / FINDINGS)
        except OSError as error:
            return [{"rule": FINDINGS, "why": f"the file cannot be read ({error.strerror or error})"}]
        tensors = [*dict.fromkeys(tensor for tensor, _ in self.tables())]
        # A disk that was full may have taken the summary and not the journal, and an event file may have been copied alone.
        return shown_summary(self._summary(), tensors) if text is None else shown_findings(text, tensors)

    def checks(self) -> Mapping[str, Any] | None:
        try:
            text = _text_of(self.path / FINDINGS)
        except OSError:
            return None
        # While a fit goes on, the summary is that of an earlier fit in the folder.
        return checks_of(self._summary()) if has_ended(text or "") else None

    def _summary(self) -> Mapping[str, Any]:
        """What the `summary.json` beside the event file says, or else the event file."""
        try:
            written = _text_of(self.path / SUMMARY)
        except OSError:
            return {}
        return self._stored_summary() if written is None else json_object([written])

    def _stored_summary(self) -> Mapping[str, Any]:
        for tag in self._index.tags("strings", PLUGIN):
            if tag.startswith(_FOUND):
                points = self._index.points(tag)
                return json_object(strings(self._index.payload(points, len(points.steps) - 1)) if len(points.steps) else [])
        return {}

    @property
    def place(self) -> str | None:
        return str(self.path)

    def problems(self) -> list[str]:
        return self._index.problems()


class ProviderRun(Tables):
    """A run read through TensorBoard's data provider, with at most a thousand steps of each tag.

    Args:
        provider: the data provider.
        arguments: returns the arguments that every call of the provider takes: the context of the current request, and the
            experiment.
        run: the name of the run.
    """

    def __init__(self, provider: Any, arguments: Callable[[], Mapping[str, Any]], run: str) -> None:
        # Begin with the time in microseconds, as `RunIndex.version` does: no earlier process began with the same number.
        self._version = time.time_ns() // 1000
        self._arguments = arguments
        self._provider, self._run = provider, run
        self._listed: dict[str, dict[str, tuple[int, float]]] = {}
        self.refresh()

    @property
    def version(self) -> int:
        return self._version

    @property
    def history(self) -> int:
        # A provider does not tell whether files were replaced, so take every change for one.
        return self._version

    def refresh(self) -> None:
        runs_of = {
            PLUGIN: self._provider.list_tensors(**self._arguments(), plugin_name=PLUGIN),
            "scalars": self._provider.list_scalars(**self._arguments(), plugin_name="scalars"),
        }
        listed = {
            plugin: {tag: (series.max_step, series.max_wall_time) for tag, series in runs.get(self._run, {}).items()}
            for plugin, runs in runs_of.items()
        }
        if listed == self._listed:
            return
        self._listed = listed
        self._tags: dict[tuple[str, str], list[str]] = {}
        for tag in listed[PLUGIN]:
            if is_table(tag) and not tag.startswith((_ABOUT, _LISTS, _INDEX)):
                self._tags.setdefault(table_of(tag), []).append(tag)
        self._about_tags = [tag for tag in listed[PLUGIN] if tag.startswith(_ABOUT)]
        self._index_tags = [tag for tag in listed[PLUGIN] if tag.startswith(_INDEX)]
        self._found_tags = [tag for tag in listed[PLUGIN] if tag.startswith(_FOUND)]
        self._summary: Mapping[str, Any] | None = None
        self._facts: list[Mapping[str, Any]] | None = None
        self._data: dict[tuple[str, str], tuple[tuple[str, ...], Steps, Values]] = {}
        self._version += 1

    def _read(
        self, read: Callable[..., Any], plugin: str, tags: Sequence[str], most: int = REMOTE_STEPS
    ) -> Mapping[str, Sequence[Any]]:
        """The data of each tag of a plugin, by tag, at no more than `most` steps of a tag."""
        from tensorboard.data.provider import RunTagFilter

        chosen = RunTagFilter(runs=[self._run], tags=[*tags])
        by_run = read(**self._arguments(), plugin_name=plugin, run_tag_filter=chosen, downsample=most)
        by_tag: Mapping[str, Sequence[Any]] = by_run.get(self._run, {})
        return by_tag

    def _table(self, tensor: str, stat: str) -> tuple[tuple[str, ...], Steps, Values]:
        """The rows, the steps and the values of a vector, joined over its lists of rows."""
        if (tensor, stat) not in self._data:
            tags = self._tags[tensor, stat]
            lists = {tag: _LISTS + tag.rsplit("/", 1)[1] for tag in tags}
            read = self._read(self._provider.read_tensors, PLUGIN, [*tags, *lists.values()])
            listed = {tag: _names(read.get(list_tag, [])) for tag, list_tag in lists.items()}
            names = tuple(dict.fromkeys(name for tag in tags for name in listed[tag]))
            column = {name: i for i, name in enumerate(names)}
            columns = {tag: [column[name] for name in listed[tag]] for tag in tags}
            # Sort by time, so that the values of a step that was written again after a resume overwrite its earlier values.
            data = sorted(((datum.wall_time, tag, datum) for tag in tags for datum in read.get(tag, [])), key=lambda d: d[0])
            steps = sorted({datum.step for *_, datum in data})
            index_of = {step: i for i, step in enumerate(steps)}
            values = np.full((len(steps), len(names)), np.nan, dtype=np.float32)
            # If several monitors have rows of the table, a step has several vectors. Each fills the columns of its rows.
            for _, tag, datum in data:
                if datum.numpy.shape == (len(columns[tag]),) and datum.numpy.dtype == np.float32:
                    values[index_of[datum.step], columns[tag]] = datum.numpy
            self._data[tensor, stat] = names, np.array(steps, dtype=np.int64), values
        return self._data[tensor, stat]

    def vectors(self) -> list[tuple[str, str]]:
        return [*self._tags]

    def vector_rows(self, tensor: str, name: str) -> tuple[str, ...]:
        return self._table(tensor, name)[0]

    def vector_steps(self, tensor: str, name: str) -> Steps:
        return self._table(tensor, name)[1]

    def read_vector(self, tensor: str, name: str, first: int, last: int) -> Values:
        return self._table(tensor, name)[2][first:last]

    def asked(self) -> Mapping[str, Sequence[str]]:
        return asked_of(self._read_facts())

    def ranks(self) -> int:
        return ranks_of(self._read_facts())

    def _read_facts(self) -> list[Mapping[str, Any]]:
        if self._facts is None:
            data_of = self._read(self._provider.read_tensors, PLUGIN, self._index_tags) if self._index_tags else {}
            self._facts = read_facts([text for data in data_of.values() for text in _names(data)])
        return self._facts

    def scalar_tags(self) -> list[str]:
        return [*self._listed["scalars"]]

    def scalar(self, tag: str) -> tuple[Steps, Floats]:
        points = self._read(self._provider.read_scalars, "scalars", [tag]).get(tag, [])
        return np.array([p.step for p in points], dtype=np.int64), np.array([p.value for p in points], dtype=np.float64)

    def histogram_tags(self) -> list[str]:
        return [*self._provider.list_tensors(**self._arguments(), plugin_name="histograms").get(self._run, {})]

    def histograms(self, tags: Sequence[str], steps: int) -> dict[str, list[tuple[int, Floats, Floats]]]:
        # TensorBoard converts a histogram into one row (left edge, right edge, count) for each bucket.
        read = self._read(self._provider.read_tensors, "histograms", tags, steps)
        return {
            tag: [(each.step, each.numpy[:, 1], each.numpy[:, 2]) for each in read.get(tag, []) if each.numpy.shape[1:] == (3,)]
            for tag in tags
        }

    def about(self) -> Mapping[str, Any]:
        about: dict[str, Any] = {}
        for data in self._read(self._provider.read_tensors, PLUGIN, self._about_tags).values():
            about.update(about_rows(_names(data)))
        return about

    def row_indices(self) -> Sequence[Mapping[str, Any]]:
        return self._read_facts()

    def saved_facts(self, prefix: str) -> list[tuple[int, str]]:
        tag = f"{TABLE}/{FACTS}/{prefix}"
        data = self._read(self._provider.read_tensors, PLUGIN, [tag]).get(tag, []) if tag in self._listed[PLUGIN] else []
        return [(datum.step, text) for datum in data for text in _names([datum])]

    def findings(self) -> list[Mapping[str, Any]] | None:
        return shown_summary(self._stored_summary(), [*dict.fromkeys(tensor for tensor, _ in self.tables())])

    def checks(self) -> Mapping[str, Any] | None:
        return checks_of(self._stored_summary())

    def _stored_summary(self) -> Mapping[str, Any]:
        """What the event file says: files beside it cannot be read here."""
        if self._summary is None:
            data_of = self._read(self._provider.read_tensors, PLUGIN, self._found_tags) if self._found_tags else {}
            self._summary = json_object([text for data in data_of.values() for text in _names(data)])
        return self._summary

    @property
    def place(self) -> str | None:
        return None

    def problems(self) -> list[str]:
        return []


def _text_of(file: Path) -> str | None:
    """The text of a file; None if there is no such file."""
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None


def _time_and_size(file: Path) -> tuple[int, int] | None:
    """The modification time in nanoseconds and the size of a file; None if the file does not exist or is unreadable."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


def _names(data: Sequence[Any]) -> tuple[str, ...]:
    """The strings of the last datum; empty if there is no datum."""
    items = data[-1].numpy.flatten().tolist() if data else ()
    return tuple(each.decode(errors="replace") for each in items if isinstance(each, bytes))
