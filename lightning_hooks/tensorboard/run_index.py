"""The index of a run: its event files joined, and any steps of a table read from them."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.errors import printable
from lightning_hooks.tensorboard.event_file import EventFile, Offsets
from lightning_hooks.tensorboard.messages import Kind, strings
from lightning_hooks.tensorboard.run_files import event_files

PLUGIN: Final = "lightning_hooks"
TABLE: Final = "table"
ROWS: Final = "rows"
ABOUT: Final = "about"
INDEX: Final = "index"
"""What follows `table/` in the tags of lists of rows, of what is known of rows, and of the row indices of step views."""

Floats = NDArray[np.float64]


class Points(NamedTuple):
    """Where the values of something are: ascending steps, each once.

    Args:
        steps: int64 [T].
        wall_times: in seconds since 1970, float64 [T].
        files: the number of the file of each, int64 [T].
        starts: first byte of each payload, int64 [T].
        sizes: of the payloads in bytes, int64 [T].
    """

    steps: Offsets
    wall_times: Floats
    files: Offsets
    starts: Offsets
    sizes: Offsets

    def at(self, which: slice | NDArray[np.intp]) -> Points:
        """Some of them."""
        steps, wall_times, files, starts, sizes = self
        return Points(steps[which], wall_times[which], files[which], starts[which], sizes[which])


_NONE: Final = np.empty(0, dtype=np.int64)
_NO_POINTS: Final = Points(_NONE, _NONE.astype(np.float64), _NONE, _NONE, _NONE)


class RunIndex:
    """The event files of one run.

    Where a step was written twice, as after a resume from an earlier checkpoint, the later file counts.

    Args:
        path: a directory, or one event file.

    Attributes:
        version: another number when there is more; no two indices have the same one, also in different processes.
        history: another number when steps that were there before may have changed: a file is new, gone, or replaced.
        unreadable: of every path that cannot be read, what the system says.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._files: dict[Path, EventFile] = {}
        self.unreadable: dict[Path, str] = {}
        self._points: dict[tuple[str, ...], Points] = {}
        self._lists: dict[str, tuple[str, ...]] = {}
        self._kinds: dict[str, tuple[Kind, str]] = {}
        self._misfits: dict[str, str] = {}  # by tag
        self._tables: dict[tuple[str, str], list[str]] = {}
        self._rows: dict[tuple[str, str], tuple[str, ...]] = {}
        self.version = self.history = time.time_ns() // 1000  # exact as a number of the page
        self.refresh()

    def refresh(self) -> bool:
        """Read what was appended to the files, and new files; whether there was anything.

        A file that cannot be read is left out with a warning, and tried again at the next call.
        """
        readings = self._readings()
        known, self._files = self._files, {}
        before, self.unreadable = self.unreadable, {}
        changed = False
        for path in self._paths():
            try:
                if path in known:
                    changed |= known[path].refresh()
                self._files[path] = known[path] if path in known else EventFile(path)
            except FileNotFoundError:  # deleted since the folder was listed
                continue
            except OSError as error:
                self._cannot_read(path, error)
        changed |= [*known] != [*self._files] or before != self.unreadable
        for path in self.unreadable.keys() - before.keys():
            warnings.warn(printable(f"{path}: {self.unreadable[path]}"), stacklevel=2)
        if changed:
            self._points.clear()
            self._lists.clear()
            self._kinds.clear()
            self._misfits.clear()
            self._tables.clear()
            self._rows.clear()
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
        """What of the run could not be read, in words, each with the name of its file."""
        found = [(path, problem) for path, problem in self.unreadable.items()]
        found += [(file.path, problem) for file in self.files for problem in file.problems]
        return [*(f"{path.name}: {problem}" for path, problem in found), *self._misfits.values()]

    def _readings(self) -> dict[Path, int]:
        return {path: file.readings for path, file in self._files.items()}

    @property
    def files(self) -> list[EventFile]:
        """In the order in which they were begun."""
        return [*self._files.values()]

    def tags(self, kind: Kind, plugin: str | None = None) -> list[str]:
        """The tags whose values are of a kind, each once; with `plugin` only those whose metadata names it."""
        return [
            tag for tag, (known, its_plugin) in self._known_tags().items() if known == kind and plugin in (None, its_plugin)
        ]

    def _known_tags(self) -> dict[str, tuple[Kind, str]]:
        """Of every tag the kind of its values, which is that in the first file, and the name of its plugin."""
        if not self._kinds:
            for file in self.files:
                for tag, (kind, plugin) in file.tags.items():
                    known, its_plugin = self._kinds.get(tag, (kind, ""))
                    self._kinds[tag] = known, its_plugin or plugin
        return self._kinds

    def vectors(self) -> dict[tuple[str, str], list[str]]:
        """The tags of each vector by tensor, with the monitor's prefix, and name: one for each list of rows."""
        if not self._tables:
            for tag in filter(is_table, self.tags("vector", PLUGIN)):
                self._tables.setdefault(table_of(tag), []).append(tag)
        return self._tables

    def points(self, *tags: str) -> Points:
        """Where the values of these tags are, joined over files and tags by step."""
        if tags not in self._points:
            pieces = [_NO_POINTS, *self._pieces(tags)]
            joined = Points(*(np.concatenate(column) for column in zip(*pieces, strict=True)))
            # The last of equal steps counts; np.unique gives the first of the reversed.
            _, first = np.unique(joined.steps[::-1], return_index=True)
            self._points[tags] = joined.at(len(joined.steps) - 1 - first)
        return self._points[tags]

    def _pieces(self, tags: Sequence[str]) -> Iterator[Points]:
        for number, file in enumerate(self.files):
            for tag in tags:
                if tag in file.tags and file.tags[tag][0] == self._known_tags()[tag][0]:
                    events, starts, sizes = file.offsets(tag)
                    found = Points(file.steps[events], file.wall_times[events], np.full_like(events, number), starts, sizes)
                    yield found.at(self._that_fit(tag, file, sizes))

    def _that_fit(self, tag: str, file: EventFile, sizes: Offsets) -> NDArray[np.intp]:
        """Which values of a tag are read: of a table those that have a number for each name of its list of rows."""
        names = self._row_list(tag) if self._known_tags()[tag] == ("vector", PLUGIN) and is_table(tag) else ()
        fits = np.ones(len(sizes), dtype=np.bool_) if not names else sizes == 4 * len(names)
        if not fits.all():
            others = int((~fits).sum())
            problem = (
                f"{others} of {len(sizes)} vectors of {tag!r} are not read: they do not have the {len(names)} rows of its list"
            )
            self._misfits[tag] = f"{file.path.name}: {problem}"
            warnings.warn(printable(f"{file.path}: {problem}"), stacklevel=2)
        return np.flatnonzero(fits)

    def rows(self, tensor: str, stat: str) -> tuple[str, ...]:
        """The names of the rows of a vector; those of all its lists, in the order in which they came."""
        if (tensor, stat) not in self._rows:
            lists = (self._row_list(tag) for tag in self.vectors()[tensor, stat])
            self._rows[tensor, stat] = tuple(dict.fromkeys(name for names in lists for name in names))
        return self._rows[tensor, stat]

    def _row_list(self, tag: str) -> tuple[str, ...]:
        digest = tag.rsplit("/", 1)[1]
        if digest not in self._lists:
            rows = f"{TABLE}/{ROWS}/{digest}"
            where = self.points(rows)
            if not len(where.steps) or self._known_tags()[rows][0] != "strings":
                return ()  # a file that was cut before its list of rows
            self._lists[digest] = tuple(strings(self.payload(where, 0)))
        return self._lists[digest]

    def table_points(self, tensor: str, stat: str) -> Points:
        """The steps of a table, each with one of its vectors: rows of several monitors lie in a vector of each."""
        return self.points(*self.vectors()[tensor, stat])

    def read_table(self, tensor: str, stat: str, where: Points) -> NDArray[np.float32]:
        """The values of a table at some of its points, of all lists that the file has at the step.

        Args:
            tensor: with the monitor's prefix.
            stat: of the table.
            where: from `table_points`, or a part of it.

        Returns:
            float32 [points, rows]; NaN where a list of rows does not have the row.
        """
        names = self.rows(tensor, stat)
        out = np.full((len(where.steps), len(names)), np.nan, dtype=np.float32)
        position = {name: i for i, name in enumerate(names)}
        for tag in self.vectors()[tensor, stat]:
            listed, own = self._row_list(tag), self.points(tag)
            if not len(listed) or not len(own.steps):
                continue
            columns = np.array([position[name] for name in listed], dtype=np.intp)
            at = np.searchsorted(own.steps, where.steps).clip(max=len(own.steps) - 1)
            # Not where the step was written again without this list, after a resume with other rows.
            there = (own.steps[at] == where.steps) & (own.files[at] == where.files)
            for number, file in enumerate(self.files):
                mine = np.flatnonzero(there & (where.files == number))
                if not len(mine):
                    continue
                # A file holds one size for each list of rows.
                values = file.floats(own.starts[at[mine]], 4 * len(listed))
                if len(mine) == len(out) and listed == names:
                    return values
                out[np.ix_(mine, columns)] = values
        return out

    def payload(self, where: Points, i: int) -> bytes:
        """The bytes of one point."""
        file: EventFile = self.files[int(where.files[i])]
        return file.payload(int(where.starts[i]), int(where.sizes[i]))

    def numbers(self, tag: str) -> tuple[Offsets, Floats]:
        """The steps and the values of a scalar."""
        where = self.points(tag)
        values = np.full(len(where.steps), np.nan)
        for number, file in enumerate(self.files):
            mine = np.flatnonzero(where.files == number)
            if len(mine):
                values[mine] = file.floats(where.starts[mine], 4)[:, 0]
        return where.steps, values


def is_table(tag: str) -> bool:
    """Whether a tag is that of a vector of a table."""
    return tag.startswith(f"{TABLE}/") and tag.count("/") >= 3


def table_of(tag: str) -> tuple[str, str]:
    """The tensor, with the monitor's prefix, and the statistic of a vector's tag.

    Example:
        >>> table_of("table/my/prefix/grad/norm/59900c43")
        ('my/prefix/grad', 'norm')
    """
    tensor, stat, _ = tag.rsplit("/", 2)  # a prefix may hold slashes, so from the right
    return tensor.removeprefix(f"{TABLE}/"), stat
