"""Reads files that somebody else may have written, within limits: regular files, JSON and compressed bytes.

Every failure is an `UnreadableError` with a sentence, so a command that reads a stranger's file ends with one line.
"""

from __future__ import annotations

import json
import os
import stat
import zlib
from pathlib import Path
from typing import Any, BinaryIO, Final

from lightning_hooks.errors import RuleError, printable, shortened

MAX_BYTES: Final = 64_000_000
"""The default limit of a file that is read as a whole, and of decompressed bytes."""
MAX_DEPTH: Final = 100
"""The default limit of nested lists and objects of JSON; functions that walk over the values may recurse."""
_KINDS: Final = {
    stat.S_IFDIR: "folder",
    stat.S_IFIFO: "named pipe",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "device",
    stat.S_IFBLK: "device",
}


class UnreadableError(RuleError):
    """A file that is missing, is not a regular file, exceeds a limit or is damaged; the message says which."""


class MissingError(UnreadableError):
    """There is no such file."""


def path_inside(folder: Path, name: object) -> Path:
    """The path of a file in a folder, by a name that a file in the folder has given.

    Args:
        folder: the folder that the file must not leave.
        name: relative to the folder.

    Raises:
        UnreadableError: the name is not a string, or leads out of the folder: by `..`, as an absolute path or by a link.

    Example:
        >>> path_inside(Path("flight_record"), "../secret.json")
        Traceback (most recent call last):
        lightning_hooks.untrusted.UnreadableError: '../secret.json' leads out of the folder flight_record and is not read
    """
    if not isinstance(name, str) or not name or "\0" in name:
        raise UnreadableError(f"the name of a file must be a text, got {shortened(repr(name), 100)}")
    path = folder / name
    try:
        is_inside = path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError) as error:
        raise UnreadableError(f"{_named(path)} cannot be read: {error}") from error
    if not is_inside:
        raise UnreadableError(f"{shortened(repr(name), 200)} leads out of the folder {_named(folder)} and is not read")
    return path


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading; a link to a regular file is followed.

    Raises:
        UnreadableError: it is a folder, a pipe, a socket or a device, or the operating system refuses.
        MissingError: there is no such file.
    """
    try:
        _check_regular(os.stat(path), path)
        # The file may have been replaced since the check: without O_NONBLOCK, opening a pipe waits for a writer.
        flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
        descriptor = os.open(path, flags)
        try:
            _check_regular(os.fstat(descriptor), path)
            return open(descriptor, "rb")
        except BaseException:
            os.close(descriptor)
            raise
    except FileNotFoundError as error:
        raise MissingError(f"{_named(path)} does not exist") from error
    except (OSError, ValueError) as error:
        raise _refused(path, error) from error


def read_bytes(path: Path, most: int = MAX_BYTES) -> bytes:
    """The content of a regular file.

    Args:
        path: of the file.
        most: the limit of its size; a larger file is refused before it is read.

    Raises:
        UnreadableError: as `open_regular`, or the file is larger.
    """
    with open_regular(path) as file:
        try:
            content = file.read(most + 1) if os.fstat(file.fileno()).st_size <= most else None
        except OSError as error:
            raise _refused(path, error) from error
    if content is None or len(content) > most:
        raise UnreadableError(f"{_named(path)} is larger than {most} bytes, the limit for such a file")
    return content


def read_json(path: Path, most: int = MAX_BYTES, depth: int = MAX_DEPTH) -> Any:
    """The value in a file of JSON.

    Args:
        path: of a regular file.
        most: the limit of its size.
        depth: the limit of nested lists and objects.

    Raises:
        UnreadableError: as `read_bytes` and `parse_json`; the message begins with the path.
    """
    content = read_bytes(path, most)
    try:
        return parse_json(content, depth)
    except UnreadableError as error:
        raise UnreadableError(f"{_named(path)}: {error}") from error


def parse_json(content: str | bytes, depth: int = MAX_DEPTH) -> Any:
    """The value of a JSON text, which is UTF-8 if it is given as bytes.

    Args:
        content: the text; the caller has limited its length.
        depth: the limit of nested lists and objects.

    Raises:
        UnreadableError: it is not UTF-8, not JSON, or nested deeper.

    Example:
        >>> parse_json(b'{"step": 3}')
        {'step': 3}
        >>> parse_json("[" * 100_000)
        Traceback (most recent call last):
        lightning_hooks.untrusted.UnreadableError: its JSON is nested deeper than 100 levels
    """
    try:
        value = json.loads(content if isinstance(content, str) else content.decode("utf-8"))
    except RecursionError as error:
        raise UnreadableError(f"its JSON is nested deeper than {depth} levels") from error
    except UnicodeDecodeError as error:
        raise UnreadableError(f"it is not UTF-8: {error.reason} at byte {error.start}") from error
    except ValueError as error:
        raise UnreadableError(f"it is not JSON: {error}") from error
    containers = [value] if isinstance(value, (dict, list)) else []
    for _ in range(depth):
        if not containers:
            return value
        containers = [
            inner
            for each in containers
            for inner in (each.values() if isinstance(each, dict) else each)
            if isinstance(inner, (dict, list))
        ]
    if containers:
        raise UnreadableError(f"its JSON is nested deeper than {depth} levels")
    return value


def decompress(content: bytes, most: int = MAX_BYTES) -> bytes:
    """The bytes that `zlib.compress` or `gzip.compress` was given.

    Args:
        content: compressed.
        most: the limit of the result; no more is held in memory.

    Raises:
        UnreadableError: the content is damaged or cut short, or the result would be larger.

    Example:
        >>> decompress(zlib.compress(b"xyz"))
        b'xyz'
        >>> decompress(zlib.compress(b"x" * 1000), most=100)
        Traceback (most recent call last):
        lightning_hooks.untrusted.UnreadableError: its compressed part is larger than 100 bytes, the limit for such a part
    """
    # 32 added to the window bits lets zlib accept its own format and that of gzip.
    decompressor = zlib.decompressobj(wbits=zlib.MAX_WBITS + 32)
    try:
        result = decompressor.decompress(content, most + 1)
    except zlib.error as error:
        raise UnreadableError(f"its compressed part is damaged: {error}") from error
    if len(result) > most:
        raise UnreadableError(f"its compressed part is larger than {most} bytes, the limit for such a part")
    if not decompressor.eof or decompressor.unused_data:
        raise UnreadableError(f"its compressed part {'is cut short' if not decompressor.eof else 'has bytes after its end'}")
    return result


def _check_regular(status: os.stat_result, path: Path) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "special file")
        raise UnreadableError(f"{_named(path)} is a {kind}, not a regular file")


def _refused(path: Path, error: OSError | ValueError) -> UnreadableError:
    if isinstance(error, UnreadableError):
        return error
    return UnreadableError(f"{_named(path)} cannot be read: {getattr(error, 'strerror', None) or error}")


def _named(path: Path) -> str:
    return printable(shortened(str(path), 500))
