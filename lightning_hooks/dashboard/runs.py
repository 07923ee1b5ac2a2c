"""Lists the runs of a log directory, and opens each run when the page first asks for it."""

from __future__ import annotations

import fnmatch
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final, Protocol

from lightning_hooks.dashboard.local_run import LocalRun
from lightning_hooks.dashboard.provider_run import ProviderRun
from lightning_hooks.dashboard.records import record_files
from lightning_hooks.dashboard.run_list import RunList
from lightning_hooks.dashboard.source import RunSource
from lightning_hooks.tensorboard.run_files import PATTERN, event_files
from lightning_hooks.tensorboard.tags import PLUGIN, TABLE

_REFRESH: Final = 1.0
"""Seconds for which the list of runs and their indices are not refreshed again."""
_PROVIDER_REFRESH: Final = 30.0
"""Seconds for which a run of a data provider is not refreshed again: a refresh reads its tables as a whole."""
_MARKS: Final = (
    f"{TABLE}/".encode(),
    b"transform_norm_before/",
    b"transform_acted/",
    b"run/nonfinite",
    b"run/skipped_steps",
)
"""Parts of tags. A run that the page can show has at least one: a table, a report of a transform or a global number."""
_LONGEST: Final = max(map(len, _MARKS))
_HAS_MARK: Final = -1
"""Stands for the offset of a file in which a mark was found: the file is not searched further."""
_CHUNK: Final = 1 << 20  # bytes
_BEGINNING: Final = 64
"""Bytes at the start of a file that tell whether it was replaced: the first event holds the time of creation of the file."""
_SEARCHED: Final = 64 * _CHUNK
"""The most bytes that one listing searches for marks, beyond the first chunk of each file. Later listings search on."""
ENVIRON: Final[ContextVar[dict[str, Any]]] = ContextVar("environ")
"""The WSGI environment of the current request. A data provider needs it to check the user's permissions."""


def has_mark(content: bytes) -> bool:
    """Whether a tag, or a piece of an event file, contains a mark of a run that the page can show."""
    return any(mark in content for mark in _MARKS)


class Runs(Protocol):
    """The runs that a page may ask for."""

    def names(self) -> list[dict[str, Any]]:
        """Every run as `name`, `shown` (whether the page can show something of it) and `modified` (seconds since 1970)."""

    def open(self, name: str) -> RunSource | None:
        """The run of this name, refreshed; None if there is no such run."""

    def health(self) -> dict[str, dict[str, Any] | None]:
        """How healthy each run is, by its name (see `health_of`); None where only the opened run tells."""

    def glimpse(self, name: str) -> dict[str, Any] | None:
        """What the list of runs shows of a run beside its health (see `RunList.glimpse`); None if there is no such run."""


class LocalRuns:
    """The runs below a local folder.

    Only listed runs are opened: a requested name is looked up in the list, and never used as a path.

    Args:
        logdir: the folder, or one event file.
        within: folders below it; only runs in these are listed. Empty for all runs.
    """

    def __init__(self, logdir: Path, within: Sequence[Path] = ()) -> None:
        self._logdir = logdir
        self._within = within or [logdir]
        self._lock = threading.Lock()
        self._paths: dict[str, Path] = {}
        self._open: dict[str, LocalRun] = {}
        self._list_of = RunList()
        # For each file its first bytes, and the offset from which it is searched for marks next.
        self._searched: dict[Path, tuple[bytes, int]] = {}
        self._bytes_left = 0  # how much of `_SEARCHED` the current listing may still read
        self._listed_at = self._refreshed_at = -_REFRESH  # seconds of the monotonic clock

    def names(self) -> list[dict[str, Any]]:
        with self._lock:
            self._list()
            self._bytes_left = _SEARCHED
            return [self._entry(name, path) for name, path in self._paths.items()]

    def open(self, name: str) -> RunSource | None:
        with self._lock:
            if name not in self._paths:
                self._list()
            if name not in self._paths:
                return None
            run = self._open.get(name)
            if run is None:
                run = self._open[name] = LocalRun(self._paths[name])
            elif time.monotonic() - self._refreshed_at >= _REFRESH:
                for each in self._open.values():
                    each.refresh()
                self._refreshed_at = time.monotonic()
            return run

    def health(self) -> dict[str, dict[str, Any] | None]:
        with self._lock:
            self._list()
            return {name: self._list_of.health(path) for name, path in self._paths.items()}

    def glimpse(self, name: str) -> dict[str, Any] | None:
        with self._lock:
            self._list()
            return self._list_of.glimpse(self._paths[name]) if name in self._paths else None

    def _list(self) -> None:
        if time.monotonic() - self._listed_at < _REFRESH:
            return
        found = (folder for each in self._within for folder in folders_of_runs(each))
        folders = [self._logdir] if self._logdir.is_file() else sorted(found)
        self._paths = {path.relative_to(self._logdir).as_posix(): path for path in folders}
        self._open = {name: run for name, run in self._open.items() if name in self._paths}
        self._list_of.keep({*folders})
        self._listed_at = time.monotonic()

    def _entry(self, name: str, path: Path) -> dict[str, Any]:
        try:
            files = event_files(path)
        except OSError:
            files = []
        records = record_files(path)
        # Call `_can_show` for every file, also after the first that can be shown: it notes how far it has searched each file.
        is_shown = [self._can_show(file) for file in files]
        return {
            "name": name,
            "shown": any(is_shown) or bool(records),
            "modified": max(map(_modified, [*files, *records]), default=0.0),
        }

    def _can_show(self, file: Path) -> bool:
        """Whether a mark has been found in a file. Indexing every file of a large folder instead would take too long.

        A file that cannot be read counts as shown: the page then tells the user why.
        """
        beginning, at = self._searched.get(file, (b"", 0))
        try:
            with open(file, "rb") as opened:
                if opened.read(len(beginning)) != beginning or opened.seek(0, os.SEEK_END) < at:
                    # The path holds another file now, so search it from its beginning.
                    at = 0
                opened.seek(0)
                beginning = opened.read(_BEGINNING)
                is_more = True
                while is_more and at != _HAS_MARK and (at == 0 or self._bytes_left > 0):
                    opened.seek(at)
                    content = opened.read(_CHUNK)
                    is_more = len(content) == _CHUNK
                    self._bytes_left -= len(content)
                    # Step back by the length of a mark: a mark may extend over the end of the chunk.
                    at = _HAS_MARK if has_mark(content) else max(at + len(content) - _LONGEST + 1, 0)
        except FileNotFoundError:
            return False
        except OSError:
            return True
        self._searched[file] = beginning, at
        return at == _HAS_MARK


def _modified(file: Path) -> float:
    """The modification time of a file in seconds since 1970; 0 if it is not available."""
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0


def folders_of_runs(logdir: Path) -> Iterator[Path]:
    """The folders with event files or flight records.

    Links to folders are followed, as by TensorBoard, except links to a folder above them.
    """
    for name, folders, files in os.walk(logdir, followlinks=True):
        folder = Path(name)
        if fnmatch.filter(files, PATTERN) or record_files(folder, folders):
            yield folder
        for link in [folder / each for each in folders if os.path.islink(folder / each)]:
            above = (folder, *folder.parents, *logdir.resolve().parents)
            # `os.path.realpath` raises no error if the link was just deleted.
            if os.path.realpath(link) in map(os.path.realpath, above):
                folders.remove(link.name)


class ProviderRuns:
    """The runs of TensorBoard's data provider."""

    def __init__(self, provider: Any) -> None:
        self._provider = provider
        self._lock = threading.Lock()
        self._open: dict[tuple[str, str], tuple[float, ProviderRun]] = {}

    def names(self) -> list[dict[str, Any]]:
        arguments = _arguments()
        runs = self._provider.list_runs(**arguments)
        shown = {*self._provider.list_tensors(**arguments, plugin_name=PLUGIN)}
        for name, tags in self._provider.list_scalars(**arguments, plugin_name="scalars").items():
            if any(has_mark(tag.encode()) for tag in tags):
                shown.add(name)
        return [{"name": run.run_name, "shown": run.run_name in shown, "modified": run.start_time or 0.0} for run in runs]

    def open(self, name: str) -> RunSource | None:
        arguments = _arguments()
        experiment = arguments["experiment_id"]
        with self._lock:
            # Call the provider at every request: it checks the permissions of the user, also for runs that are cached here.
            if name not in {run.run_name for run in self._provider.list_runs(**arguments)}:
                self._open.pop((experiment, name), None)
                return None
            refreshed, run = self._open.get((experiment, name), (0.0, None))
            if run is None:
                run = ProviderRun(self._provider, _arguments, name)
            elif time.monotonic() - refreshed >= _PROVIDER_REFRESH:
                run.refresh()
            else:
                return run
            self._open[experiment, name] = time.monotonic(), run
            return run

    def health(self) -> dict[str, dict[str, Any] | None]:
        return {each["name"]: None for each in self.names()}

    def glimpse(self, name: str) -> dict[str, Any] | None:
        # A glimpse reads files. Where there are none, the page opens a run to show more than its name and its date.
        return {} if any(each["name"] == name for each in self.names()) else None


def _arguments() -> dict[str, Any]:
    """The arguments that every call of a data provider takes: the context of the current request, and the experiment."""
    from tensorboard import plugin_util

    environ = ENVIRON.get({})
    return {"ctx": plugin_util.context(environ), "experiment_id": plugin_util.experiment_id(environ)}
