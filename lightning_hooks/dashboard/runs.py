"""The runs of a log directory, found and opened when they are asked for."""

from __future__ import annotations

import fnmatch
import os
import threading
import time
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final, Protocol

from lightning_hooks.dashboard.source import LocalRun, ProviderRun, RunSource
from lightning_hooks.tensorboard.run_files import PATTERN, event_files
from lightning_hooks.tensorboard.run_index import PLUGIN, TABLE

_REFRESH: Final = 1.0
"""Seconds for which what is known of the files counts as current."""
_PROVIDER_REFRESH: Final = 30.0
"""The same for a data provider, which reads its tables again each time."""
_MARKS: Final = (
    f"{TABLE}/".encode(),
    b"transform_norm_before/",
    b"transform_acted/",
    b"hooks/nonfinite",
    b"hooks/skipped_steps",
)
"""In the tags of a run that the page can show: tables, or what is always there of transforms and of global numbers."""
_LONGEST: Final = max(map(len, _MARKS))
_FOUND: Final = -1
_CHUNK: Final = 1 << 20
_BEGINNING: Final = 64
"""Bytes of a file by which it is known again: the first event has the time at which the file was begun."""
_READ_ON: Final = 64 * _CHUNK
"""Bytes in which tags are looked for at a time, beyond the first chunk of each file: a large folder takes several times."""
ENVIRON: Final[ContextVar[dict[str, Any]]] = ContextVar("environ")
"""The WSGI environment of the request that is being served, for a data provider, which checks who asks."""


def has_mark(content: bytes) -> bool:
    """Whether a tag, or a piece of an event file, has what the page can show."""
    return any(mark in content for mark in _MARKS)


class Runs(Protocol):
    """The runs that a page may ask for."""

    def names(self) -> list[dict[str, Any]]:
        """Of each run `name`, `shown` (whether there is something to show of it) and `modified`, in seconds since 1970."""

    def open(self, name: str) -> RunSource | None:
        """A run, with what was written until now; None where there is none of this name."""


class LocalRuns:
    """The runs below a folder here.

    Only these are ever opened: a name is looked up among them, and never becomes a path.
    """

    def __init__(self, logdir: Path) -> None:
        self._logdir = logdir
        self._lock = threading.Lock()
        self._paths: dict[str, Path] = {}
        self._open: dict[str, LocalRun] = {}
        # Of each file its first bytes, and the byte from which on tags are looked for.
        self._sniffed: dict[Path, tuple[bytes, int]] = {}
        self._left = 0
        self._listed = self._refreshed = -_REFRESH

    def names(self) -> list[dict[str, Any]]:
        with self._lock:
            self._list()
            self._left = _READ_ON
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
            elif time.monotonic() - self._refreshed >= _REFRESH:
                for each in self._open.values():
                    each.refresh()
                self._refreshed = time.monotonic()
            return run

    def _list(self) -> None:
        if time.monotonic() - self._listed < _REFRESH:
            return
        folders = [self._logdir] if self._logdir.is_file() else sorted(_folders_of_runs(self._logdir))
        self._paths = {path.relative_to(self._logdir).as_posix(): path for path in folders}
        self._open = {name: run for name, run in self._open.items() if name in self._paths}
        self._listed = time.monotonic()

    def _entry(self, name: str, path: Path) -> dict[str, Any]:
        try:
            files = event_files(path)
        except OSError:
            files = []
        is_shown = [self._sniff(file) for file in files]
        return {"name": name, "shown": any(is_shown), "modified": max(map(_modified, files), default=0.0)}

    def _sniff(self, file: Path) -> bool:
        """Whether a file has what the page shows, by its tags: to index every file of a large folder would take long.

        A file that cannot be read is shown, since the page says why.
        """
        beginning, at = self._sniffed.get(file, (b"", 0))
        try:
            with open(file, "rb") as opened:
                if opened.read(len(beginning)) != beginning or opened.seek(0, os.SEEK_END) < at:
                    at = 0  # the file was replaced
                opened.seek(0)
                beginning = opened.read(_BEGINNING)
                is_more = True
                while is_more and at != _FOUND and (at == 0 or self._left > 0):
                    opened.seek(at)
                    content = opened.read(_CHUNK)
                    is_more = len(content) == _CHUNK
                    self._left -= len(content)
                    # The name may lie across the end of what was read.
                    at = _FOUND if has_mark(content) else max(at + len(content) - _LONGEST + 1, 0)
        except FileNotFoundError:
            return False
        except OSError:
            return True
        self._sniffed[file] = beginning, at
        return at == _FOUND


def _modified(file: Path) -> float:
    """When a file was written, in seconds since 1970; 0 where the system does not say."""
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0


def _folders_of_runs(logdir: Path) -> Iterator[Path]:
    """The folders with event files. Links to folders are followed, as TensorBoard does, but none to a folder that holds it."""
    for name, folders, files in os.walk(logdir, followlinks=True):
        folder = Path(name)
        if fnmatch.filter(files, PATTERN):
            yield folder
        for link in [folder / each for each in folders if os.path.islink(folder / each)]:
            above = (folder, *folder.parents, *logdir.resolve().parents)
            if os.path.realpath(link) in map(os.path.realpath, above):  # which is no error where a link has just gone
                folders.remove(link.name)


class ProviderRuns:
    """The runs that TensorBoard's data provider knows."""

    def __init__(self, provider: Any) -> None:
        self._provider = provider
        self._lock = threading.Lock()
        self._open: dict[tuple[str, str], tuple[float, ProviderRun]] = {}

    def names(self) -> list[dict[str, Any]]:
        asked = _asked()
        runs = self._provider.list_runs(**asked)
        shown = {*self._provider.list_tensors(**asked, plugin_name=PLUGIN)}
        for name, tags in self._provider.list_scalars(**asked, plugin_name="scalars").items():
            if any(has_mark(tag.encode()) for tag in tags):
                shown.add(name)
        return [{"name": run.run_name, "shown": run.run_name in shown, "modified": run.start_time or 0.0} for run in runs]

    def open(self, name: str) -> RunSource | None:
        asked = _asked()
        experiment = asked["experiment_id"]
        with self._lock:
            # Asked for every request, so that the provider can refuse the one who asks, also what is already in memory here.
            if name not in {run.run_name for run in self._provider.list_runs(**asked)}:
                self._open.pop((experiment, name), None)
                return None
            refreshed, run = self._open.get((experiment, name), (0.0, None))
            if run is None:
                run = ProviderRun(self._provider, _asked, name)
            elif time.monotonic() - refreshed >= _PROVIDER_REFRESH:
                run.refresh()
            else:
                return run
            self._open[experiment, name] = time.monotonic(), run
            return run


def _asked() -> dict[str, Any]:
    """What every question to a data provider says of the request."""
    from tensorboard import plugin_util

    environ = ENVIRON.get({})
    return {"ctx": plugin_util.context(environ), "experiment_id": plugin_util.experiment_id(environ)}
