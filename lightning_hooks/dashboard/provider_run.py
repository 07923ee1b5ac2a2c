"""Reads a run for the page through TensorBoard's data provider, where its event files are not local."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from lightning_hooks.dashboard import REMOTE_STEPS
from lightning_hooks.dashboard.facts import about_rows, json_object
from lightning_hooks.dashboard.findings import checks_of, shown_summary
from lightning_hooks.dashboard.source import Floats, Steps, Values
from lightning_hooks.recorder.record import FlightRecord
from lightning_hooks.tensorboard.local_tables import asked_of, ranks_of, read_facts
from lightning_hooks.tensorboard.row_histograms import points_of, tag_of, with_rows
from lightning_hooks.tensorboard.tables import Tables
from lightning_hooks.tensorboard.tags import (
    ABOUT,
    FACTS,
    FOUND,
    INDEX,
    PLUGIN,
    ROWS,
    TABLE,
    WINDOW,
    is_table,
    table_of,
    tensor_of_histograms,
)

_ABOUT: Final = f"{TABLE}/{ABOUT}/"
_LISTS: Final = f"{TABLE}/{ROWS}/"
_INDEX: Final = f"{TABLE}/{INDEX}/"
_FOUND: Final = f"{FOUND}/"
_OF_STEPS: Final = (f"{TABLE}/{FACTS}/", f"{TABLE}/{WINDOW}/")


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
            is_other = tag.startswith((_ABOUT, _LISTS, _INDEX, *_OF_STEPS)) or tensor_of_histograms(tag) is not None
            if is_table(tag) and not is_other:
                self._tags.setdefault(table_of(tag), []).append(tag)
        self._about_tags = [tag for tag in listed[PLUGIN] if tag.startswith(_ABOUT)]
        self._index_tags = [tag for tag in listed[PLUGIN] if tag.startswith(_INDEX)]
        self._histogram_lists = [tag for tag in listed[PLUGIN] if tensor_of_histograms(tag) is not None]
        self._row_histograms: dict[str, dict[str, int]] | None = None
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
        drawn = self._provider.list_tensors(**self._arguments(), plugin_name="histograms").get(self._run, {})
        tensors = [tensor for tag in self._histogram_lists if (tensor := tensor_of_histograms(tag)) is not None]
        return with_rows(drawn, self._lists_of_rows(), tensors)

    def histograms(self, tags: Sequence[str], steps: int) -> dict[str, list[tuple[int, Floats, Floats]]]:
        of_rows = self._lists_of_rows()
        lists = {each: None for tag in tags for each in of_rows.get(tag, ())}
        stored = {
            each: [(datum.step, datum.numpy.ravel().tolist()) for datum in data]
            for each, data in (self._read(self._provider.read_tensors, PLUGIN, [*lists], steps) if lists else {}).items()
        }
        drawn = [tag for tag in tags if tag not in of_rows]
        # TensorBoard converts a histogram into one row (left edge, right edge, count) for each bucket.
        read = self._read(self._provider.read_tensors, "histograms", drawn, steps) if drawn else {}
        found: dict[str, list[tuple[int, Floats, Floats]]] = {
            tag: [(each.step, each.numpy[:, 1], each.numpy[:, 2]) for each in read.get(tag, []) if each.numpy.shape[1:] == (3,)]
            for tag in drawn
        }
        for tag in [tag for tag in tags if tag in of_rows]:
            points = {point[0]: point for each, row in of_rows[tag].items() for point in points_of(row, stored.get(each, []))}
            found[tag] = [points[step] for step in sorted(points)]
        return found

    def _lists_of_rows(self) -> dict[str, dict[str, int]]:
        """By tag of a row: the tags of the lists of histograms that have the row, each with the index of the row."""
        if self._row_histograms is None:
            self._row_histograms = {}
            rows_tag = {tag: _LISTS + tag.rsplit("/", 1)[1] for tag in self._histogram_lists}
            read = self._read(self._provider.read_tensors, PLUGIN, [*rows_tag.values()]) if rows_tag else {}
            for tag, rows in rows_tag.items():
                for row, name in enumerate(_names(read.get(rows, []))):
                    self._row_histograms.setdefault(tag_of(tensor_of_histograms(tag) or "", name), {})[tag] = row
        return self._row_histograms

    def about(self) -> Mapping[str, Any]:
        about: dict[str, Any] = {}
        for data in self._read(self._provider.read_tensors, PLUGIN, self._about_tags).values():
            about.update(about_rows(_names(data)))
        return about

    def row_indices(self) -> Sequence[Mapping[str, Any]]:
        return self._read_facts()

    def saved_facts(self, prefix: str) -> list[tuple[int, str]]:
        return self._texts_of(FACTS, prefix)

    def window_texts(self, prefix: str) -> list[tuple[int, str]]:
        return self._texts_of(WINDOW, prefix)

    def _texts_of(self, kind: str, prefix: str) -> list[tuple[int, str]]:
        tag = f"{TABLE}/{kind}/{prefix}"
        data = self._read(self._provider.read_tensors, PLUGIN, [tag]).get(tag, []) if tag in self._listed[PLUGIN] else []
        return [(datum.step, text) for datum in data for text in _names([datum])]

    def findings(self) -> list[Mapping[str, Any]] | None:
        return shown_summary(self._stored_summary(), [*dict.fromkeys(tensor for tensor, _ in self.tables())])

    def checks(self) -> Mapping[str, Any] | None:
        return checks_of(self._stored_summary())

    def fits(self) -> int:
        # Event files hold the findings of the newest fit only, so the page has no other to choose.
        return 1

    def records(self) -> Mapping[str, FlightRecord]:
        return {}  # a record is a folder beside the event files, which a provider does not list

    def _stored_summary(self) -> Mapping[str, Any]:
        """What the event file says: files beside it cannot be read here."""
        if self._summary is None:
            data_of = self._read(self._provider.read_tensors, PLUGIN, self._found_tags) if self._found_tags else {}
            self._summary = json_object([text for data in data_of.values() for text in _names(data)])
        return self._summary

    def times(self) -> tuple[float, float] | None:
        return None  # a provider tells the time of the last event only

    @property
    def place(self) -> str | None:
        return None

    def problems(self) -> list[str]:
        return []


def _names(data: Sequence[Any]) -> tuple[str, ...]:
    """The strings of the last datum; empty if there is no datum."""
    items = data[-1].numpy.flatten().tolist() if data else ()
    return tuple(each.decode(errors="replace") for each in items if isinstance(each, bytes))
