"""The event files of a folder."""

from __future__ import annotations

import fnmatch
import os
import stat
from pathlib import Path
from typing import Final

PATTERN: Final = "*tfevents*"
"""What the name of an event file is like."""


def event_files(path: Path) -> list[Path]:
    """The event files of a folder, in the order in which they were begun; of a file itself.

    Raises:
        OSError: the folder cannot be read.
    """
    if not os.path.isdir(path):
        return [path] if _is_event_file(path) else []
    found = (path / name for name in fnmatch.filter(os.listdir(path), PATTERN))
    return sorted(file for file in found if _is_event_file(file))


def _is_event_file(path: Path) -> bool:
    """Whether there is a file, or something of which the system does not say what it is: reading it says why."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True


def runs_below(path: Path) -> str:
    """The end of a message about a path that holds no run: where there are runs below it; empty where there are none."""
    files = [] if path.is_file() else [found for found in path.rglob(PATTERN) if found.is_file()]
    nested = sorted({str(found.parent) for found in files} - {str(path)})
    return f"; there are runs in {', '.join(nested[:5])}" if nested else ""
