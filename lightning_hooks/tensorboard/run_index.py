"""The index of a run: joins its event files, and reads any steps of a table from them."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.errors import printable
from lightning_hooks.tensorboard.event_file import EventFile, Offsets
from lightning_hooks.tensorboard.messages import Kind, strings
from lightning_hooks.tensorboard.points import Floats, Points, joined
from lightning_hooks.tensorboard.run_files import event_files
from lightning_hooks.tensorboard.tags import PLUGIN, ROWS, TABLE, is_table, table_of

_CACHED: Final = 16
"""The most scalars whose values are cached."""


class RunIndex:
    """The event files of one run.

    If a step was written twice, as after a resume from an earlier checkpoint, the values of the later file are used.

    Args:
        path: a folder, or one event file.

    Attributes:
        version: a number that changes when the files have grown. It begins with the time, so two indices never have equal
            versions, even in different processes.
        history: a number that changes when earlier steps may have changed: a file is new, gone, or was replaced.
        unreadable: path to the error message of the system, for every path that cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._files: dict[Path, EventFile] = {}
        self.unreadable: dict[Path, str] = {}
        self._points: dict[tuple[str, ...], Points] = {}
        self._lists: dict[str, tuple[str, ...]] = {}
        self._kinds: dict[str, tuple[Kind, str]] = {}
        self._misfits: dict[str, str] = {}  # tag -> the message that vectors of the tag have the wrong length
        self._tables: dict[tuple[str, str], list[str]] = {}
        self._rows: dict[tuple[str, str], tuple[str, ...]] = {}
        self._numbers: dict[str, tuple[Offsets, Floats]] = {}
        self.version = self.history = time.time_ns() // 1000  # microseconds, so that JavaScript holds the number exactly
        self.refresh()

    def refresh(self) -> bool:
        """Index what was appended to the files, and new files; return whether anything changed.

        A file that cannot be read is skipped with a warning, and tried again at the next call.
        """
        readings = self._readings()
        previous, self._files = self._files, {}
        before, self.unreadable = self.unreadable, {}
        changed = False
        for path in self._paths():
            try:
                if path in previous:
                    changed |= previous[path].refresh()
                self._files[path] = previous[path] if path in previous else EventFile(path)
            # The file was deleted after the folder was listed.
            except FileNotFoundError:
                continue
            except OSError as error:
                self._cannot_read(path, error)
        changed |= [*previous] != [*self._files] or before != self.unreadable
        for path in self.unreadable.keys() - before.keys():
            warnings.warn(printable(f"{path}: {self.unreadable[path]}"), stacklevel=2)
        if changed:
            self._points.clear()
            self._lists.clear()
            self._kinds.clear()
            self._misfits.clear()
            self._tables.clear()
            self._rows.clear()
            self._numbers.clear()
            self.version += 1
            self.history += self._readings() != readings
        return changed

    def _paths(self) -> list[Path]:
        try:
            return event_files(self.path)
        except OSError as error:
            self._cannot_read(self.path, error)
            return []

    def _cannot_read(self, path: Path, error: OSError) -> None:
        self.unreadable[path] = f"cannot be read ({error.strerror or error})"

    def problems(self) -> list[str]:
        """Messages about the parts of the run that could not be read, each beginning with the name of its file."""
        problems = [(path, problem) for path, problem in self.unreadable.items()]
        problems += [(file.path, problem) for file in self.files for problem in file.problems]
        return [*(f"{path.name}: {problem}" for path, problem in problems), *self._misfits.values()]

    def _readings(self) -> dict[Path, int]:
        return {path: file.readings for path, file in self._files.items()}

    @property
    def files(self) -> list[EventFile]:
        """The indexed event files, in the order in which they were created."""
        return [*self._files.values()]

    def tags(self, kind: Kind, plugin: str | None = None) -> list[str]:
        """The tags whose values are of a kind; if `plugin` is given, only tags whose metadata names this plugin."""
        return [tag for tag, (tag_kind, owner) in self._all_tags().items() if tag_kind == kind and plugin in (None, owner)]

    def _all_tags(self) -> dict[str, tuple[Kind, str]]:
        """Tag to the kind of its values in the first file that has the tag, and the name of its plugin."""
        if not self._kinds:
            for file in self.files:
                for tag, (kind, plugin) in file.tags.items():
                    first_kind, owner = self._kinds.get(tag, (kind, ""))
                    self._kinds[tag] = first_kind, owner or plugin
        return self._kinds

    def vectors(self) -> dict[tuple[str, str], list[str]]:
        """(tensor with the monitor's prefix, name) to the tags of this vector: one tag for each list of rows."""
        if not self._tables:
            for tag in filter(is_table, self.tags("vector", PLUGIN)):
                self._tables.setdefault(table_of(tag), []).append(tag)
        return self._tables

    def points(self, *tags: str) -> Points:
        """The positions of the values of these tags, joined over files and tags by step."""
        if tags not in self._points:
            self._points[tags] = joined(self._pieces(tags))
        return self._points[tags]

    def _pieces(self, tags: Sequence[str]) -> Iterator[Points]:
        for number, file in enumerate(self.files):
            for tag in tags:
                if tag in file.tags and file.tags[tag][0] == self._all_tags()[tag][0]:
                    events, starts, sizes = file.offsets(tag)
                    points = Points(file.steps[events], file.wall_times[events], np.full_like(events, number), starts, sizes)
                    yield points.at(self._readable(tag, file, sizes))

    def _readable(self, tag: str, file: EventFile, sizes: Offsets) -> NDArray[np.intp]:
        """The indices of the values of a tag that are read: skip, with a warning, vectors without one number for each row."""
        names = self.row_list(tag) if self._all_tags()[tag] == ("vector", PLUGIN) and is_table(tag) else ()
        is_readable = np.ones(len(sizes), dtype=np.bool_) if not names else sizes == 4 * len(names)
        if not is_readable.all():
            skipped = int((~is_readable).sum())
            problem = (
                f"{skipped} of {len(sizes)} vectors of {tag!r} are not read: they do not have the {len(names)} rows of its list"
            )
            self._misfits[tag] = f"{file.path.name}: {problem}"
            warnings.warn(printable(f"{file.path}: {problem}"), stacklevel=2)
        return np.flatnonzero(is_readable)

    def rows(self, tensor: str, stat: str) -> tuple[str, ...]:
        """The names of the rows of a vector: of all its lists of rows, in the order in which the lists were written."""
        if (tensor, stat) not in self._rows:
            lists = (self.row_list(tag) for tag in self.vectors()[tensor, stat])
            self._rows[tensor, stat] = tuple(dict.fromkeys(name for names in lists for name in names))
        return self._rows[tensor, stat]

    def row_list(self, tag: str) -> tuple[str, ...]:
        """The names of the rows of a tag that ends with the hash of a list of rows; empty if the list is missing."""
        digest = tag.rsplit("/", 1)[1]
        if digest not in self._lists:
            rows_tag = f"{TABLE}/{ROWS}/{digest}"
            points = self.points(rows_tag)
            # The list of rows is missing if its event is damaged. Then the vectors cannot be read.
            if not len(points.steps) or self._all_tags()[rows_tag][0] != "strings":
                return ()
            self._lists[digest] = tuple(strings(self.payload(points, 0)))
        return self._lists[digest]

    def table_points(self, tensor: str, stat: str) -> Points:
        """The points of a table, one vector for each step.

        If several monitors have rows of the table, each writes a vector of its own; `read_table` joins the vectors of a step.
        """
        return self.points(*self.vectors()[tensor, stat])

    def read_table(self, tensor: str, stat: str, chosen: Points) -> NDArray[np.float32]:
        """The values of a table at some of its points, joined over the lists of rows that were written at each step.

        Args:
            tensor: with the monitor's prefix.
            stat: the name of the vector.
            chosen: the points from `table_points`, or some of them.

        Returns:
            float32 [points, rows]; NaN where no list that was written at the step has the row.
        """
        names = self.rows(tensor, stat)
        out: NDArray[np.float32] | None = None
        column_of: dict[str, int] = {}
        for tag in self.vectors()[tensor, stat]:
            listed, points = self.row_list(tag), self.points(tag)
            if not len(listed) or not len(points.steps):
                continue
            at = np.searchsorted(points.steps, chosen.steps).clip(max=len(points.steps) - 1)
            # After a resume with different rules a step can exist in two files. Use only vectors of the later file.
            is_current = (points.steps[at] == chosen.steps) & (points.files[at] == chosen.files)
            for number, file in enumerate(self.files):
                in_file = np.flatnonzero(is_current & (chosen.files == number))
                if not len(in_file):
                    continue
                # All vectors of a list of rows have the same size, because `points` has skipped vectors of other lengths.
                values = file.floats(points.starts[at[in_file]], 4 * len(listed))
                # Most runs have one file and one list of rows. Then the names of the rows need not be matched.
                if len(in_file) == len(chosen.steps) and listed == names:
                    return values
                if out is None:
                    out, column_of = _blank(chosen, names), {name: i for i, name in enumerate(names)}
                out[np.ix_(in_file, np.array([column_of[name] for name in listed], dtype=np.intp))] = values
        return _blank(chosen, names) if out is None else out

    def payload(self, points: Points, i: int) -> bytes:
        """The bytes of the value at point `i`."""
        file: EventFile = self.files[int(points.files[i])]
        return file.payload(int(points.starts[i]), int(points.sizes[i]))

    def histograms(self, tags: Sequence[str], most: int) -> dict[str, list[tuple[int, bytes]]]:
        """The (step, payload) of histograms at no more than `most` steps of each tag, evenly chosen; each event is read once.

        Args:
            tags: of histograms.
            most: steps of a tag.
        """
        read = self.payloads([(tag,) for tag in tags], most)
        return {tag: [(step, payload) for step, _, payload in points] for tag, points in zip(tags, read, strict=True)}

    def payloads(self, groups: Sequence[Sequence[str]], most: int) -> list[list[tuple[int, str, bytes]]]:
        """The (step, tag, payload) of the values of each group of tags, ascending by step; each event is read once.

        Args:
            groups: tags of values that are not of fixed size, such as histograms.
            most: steps of a group, which are chosen evenly.
        """
        steps = [file.steps.tolist() for file in self.files]
        wanted: dict[tuple[int, int], set[str]] = {}  # (number of the file, event) -> the tags to read there
        placed: list[dict[tuple[int, str], tuple[int, int]]] = []
        for tags in groups:
            # (step, tag) -> (number of the file, event); the last one if a step occurs twice.
            at: dict[tuple[int, str], tuple[int, int]] = {}
            for number, file in enumerate(self.files):
                for tag in tags:
                    if tag in file.tags and file.tags[tag][0] == self._all_tags()[tag][0]:
                        at.update({(steps[number][event], tag): (number, event) for event in file.events_of(tag)})
            of_group = sorted({step for step, _ in at})
            places = np.linspace(0, len(of_group) - 1, min(most, len(of_group))).round().astype(np.intp)
            chosen = {of_group[i] for i in places.tolist()}
            placed.append({(step, tag): place for (step, tag), place in at.items() if step in chosen})
            for (_, tag), place in placed[-1].items():
                wanted.setdefault(place, set()).add(tag)
        read = {place: self.files[place[0]].payloads(place[1], tags) for place, tags in wanted.items()}
        return [
            sorted(((step, tag, read[place][tag]) for (step, tag), place in at.items() if tag in read[place]), key=_step)
            for at in placed
        ]

    def numbers(self, tag: str) -> tuple[Offsets, Floats]:
        """The steps and the values of a scalar, int64 [T] and float64 [T].

        The scalars that were read last are cached: while a person moves through a run, its curve is asked for at every step.
        """
        if tag not in self._numbers:
            while len(self._numbers) >= _CACHED:
                del self._numbers[next(iter(self._numbers))]
            self._numbers[tag] = self._read_numbers(tag)
        return self._numbers[tag]

    def _read_numbers(self, tag: str) -> tuple[Offsets, Floats]:
        points = self.points(tag)
        values = np.full(len(points.steps), np.nan)
        for number, file in enumerate(self.files):
            in_file = np.flatnonzero(points.files == number)
            if len(in_file):
                values[in_file] = file.floats(points.starts[in_file], 4)[:, 0]
        return points.steps, values


def _blank(chosen: Points, names: Sequence[str]) -> NDArray[np.float32]:
    return np.full((len(chosen.steps), len(names)), np.nan, dtype=np.float32)


def _step(point: tuple[int, str, bytes]) -> int:
    return point[0]
