"""Opens a file for appending that no other process appends to at the same time."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from lightning_hooks.whole_files import open_no_link

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:
    # Windows has no fcntl. There, two fits that run at the same time in one folder share a file.
    fcntl = None

_MOST: Final = 100  # files of one name


def numbered(path: Path, number: int) -> Path:
    """The name of a file for one of several writers.

    Example:
        >>> numbered(Path("findings.jsonl"), 1).name, numbered(Path("findings.jsonl"), 2).name
        ('findings.jsonl', 'findings-2.jsonl')
    """
    return path if number == 1 else path.with_stem(f"{path.stem}-{number}")


def open_own(path: Path) -> tuple[Any, int]:
    """Open a file for appending, without a buffer, and lock it until `close_own`.

    If another process or object has locked it, that of the next number is opened. A file system without locks is used without.

    Args:
        path: of the first file.

    Returns:
        The open file, and its number.

    Raises:
        OSError: no file can be opened, there is a link or a pipe in its place, or all of the first 100 are locked.
    """
    for number in range(1, _MOST + 1):
        # Without a buffer, a write either reaches the operating system or raises.
        file = open(numbered(path, number), "ab", buffering=0, opener=open_no_link)
        try:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            continue
        except OSError:
            pass
        return file, number
    raise OSError(f"{_MOST} fits write into {path.parent} at the same time")


def close_own(file: Any) -> None:
    """Unlock and close a file."""
    # Unlock before closing: a forked process, such as a worker of a DataLoader, may hold a copy of the descriptor.
    if fcntl is not None:
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_UN)
    file.close()
