"""Finds the event files of a folder."""

from __future__ import annotations

import fnmatch
import os
import stat
from pathlib import Path
from typing import Final

PATTERN: Final = "*tfevents*"
"""Pattern of the names of event files."""


def event_files(path: Path) -> list[Path]:
    """The event files of a folder, in the order in which they were created; if `path` is an event file, only this file.

    Raises:
        OSError: the folder cannot be read.
    """
    if not os.path.isdir(path):
        return [path] if _is_event_file(path) else []
    files = (path / name for name in fnmatch.filter(os.listdir(path), PATTERN))
    return sorted(file for file in files if _is_event_file(file))


def _is_event_file(path: Path) -> bool:
    """Whether the path is a regular file.

    A path that the system refuses to describe also counts: reading it raises an error that tells the user why.
    """
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True


def runs_below(path: Path) -> str:
    """The end of an error message about a path without a run: the folders below it that are runs; empty if there are none."""
    files = [] if path.is_file() else [file for file in path.rglob(PATTERN) if file.is_file()]
    nested = sorted({str(file.parent) for file in files} - {str(path)})
    return f"; there are runs in {', '.join(nested[:5])}" if nested else ""
