"""Writes files in one piece: under a random name in the same folder, flushed to the disk, then renamed.

The name is random, and the file must not exist: in a folder that others write to, a link that waits under a known name would
lead the content into another file.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

_NO_LINK: Final = getattr(os, "O_NOFOLLOW", 0)
_NO_WAIT: Final = getattr(os, "O_NONBLOCK", 0)


def write_whole(path: Path, *parts: str | bytes | memoryview) -> None:
    """Write a file, which a reader finds as a whole or not at all.

    Args:
        path: of the file. If it is a link, the link is replaced.
        parts: its content, one after another; a text is written as UTF-8.

    Raises:
        OSError: the file cannot be written; nothing is left of it.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "summary.json"
        >>> write_whole(path, "{}")
        >>> path.read_text(), [each.name for each in path.parent.iterdir()]
        ('{}', ['summary.json'])
    """
    with whole_file(path) as unfinished, open(unfinished, "wb", opener=open_no_link) as file:
        for part in parts:
            file.write(part.encode() if isinstance(part, str) else part)


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A new empty file beside `path`, for a library to write; it takes the place of `path` at the end of the block.

    Raises:
        OSError: the file cannot be written, or `path` is a pipe, a device or a link to one, which no file may replace; as after
            any error in the block, nothing is left of the new file.
    """
    _refuse_special(path)
    unfinished = create_unfinished(path)
    try:
        # The mode follows from the umask. A library may write another file in place of the empty one, with a mode of its own.
        mode = unfinished.stat().st_mode
        yield unfinished
        flush(unfinished, mode)
        os.replace(unfinished, path)
    except BaseException:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise


def _refuse_special(path: Path) -> None:
    try:
        mode = path.stat().st_mode
    except OSError:
        return  # There is nothing yet, or a link that leads nowhere.
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))


def create_unfinished(path: Path) -> Path:
    """Create an empty file with a random name in the folder of `path`, and return its path.

    Raises:
        OSError: the file cannot be created.
    """
    unfinished = path.with_name(f".{path.name[:100]}.{secrets.token_hex(8)}.tmp")
    os.close(open_no_link(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
    return unfinished


def flush(path: Path, mode: int) -> None:
    """Set the mode of a file, and wait until its content is on the disk."""
    path.chmod(mode)
    descriptor = open_no_link(path, os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_no_link(path: str | os.PathLike[str], flags: int) -> int:
    """Open a file, not what a link in its place leads to, and without waiting for the reader of a pipe; an `opener`.

    Args:
        path: of the file. If it is new, its mode is that of the umask.
        flags: of `os.open`.

    Returns:
        The descriptor.

    Raises:
        OSError: the file cannot be opened, or is a link, a pipe or a device.
    """
    descriptor = os.open(path, flags | _NO_LINK | _NO_WAIT, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))
    return descriptor
