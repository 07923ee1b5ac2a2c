"""Put buffers and files back in place: the bytes that they hold, and the position from which they are read."""

from __future__ import annotations

import io
from array import array
from collections.abc import Callable
from typing import Any


def saved_in_place(value: Any) -> Callable[[], object] | None:
    """A function that puts a buffer or a file back; None if the value is neither, or cannot be put back.

    What code writes into a file that is open for writing alone stays in the file: no training reads it.

    Example:
        >>> content = bytearray(b"ab")
        >>> restore = saved_in_place(content)
        >>> content.append(3)
        >>> restore()
        >>> content
        bytearray(b'ab')
    """
    if isinstance(value, (bytearray, array)):
        return _saved_buffer(value)
    if isinstance(value, (io.StringIO, io.BytesIO)) and not value.closed:
        state = value.__getstate__()
        return lambda: value.__setstate__(state)  # type: ignore[union-attr]
    return _saved_position(value) if isinstance(value, io.IOBase) else None


def _saved_buffer(value: Any) -> Callable[[], None]:
    content = value[:]

    def restore() -> None:
        # NaN differs from itself, so compare the bytes of an array.
        if bytes(value) != bytes(content):
            value[:] = content

    return restore


def _saved_position(file: Any) -> Callable[[], object] | None:
    try:
        if file.closed or not file.readable():
            return lambda: None
        if file.writable():
            return None
        position = file.tell()
        return lambda: file.seek(position)
    except (AttributeError, OSError, ValueError):
        return None
