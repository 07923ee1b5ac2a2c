"""Marks: by which bytes an event file is recognised when it is read again, so that a file replaced in place is noticed."""

from __future__ import annotations

from typing import BinaryIO, Final

_SIZE: Final = 64  # bytes


class Marks:
    """The first and the last bytes of the part of a file that is indexed; none before `keep`.

    Example:
        >>> import io
        >>> marks = Marks()
        >>> marks.keep(io.BytesIO(b"first run"), 5)
        >>> marks.are_in(io.BytesIO(b"first run goes on")), marks.are_in(io.BytesIO(b"another run"))
        (True, False)
    """

    def __init__(self) -> None:
        self._kept: list[tuple[int, bytes]] = []  # (offset, bytes read there)

    def keep(self, file: BinaryIO, end: int) -> None:
        """Keep the bytes of a file that is indexed up to the offset `end`."""
        self._kept = []
        for at in (0, max(end - _SIZE, 0)):
            file.seek(at)
            self._kept.append((at, file.read(min(_SIZE, end))))

    def are_in(self, file: BinaryIO) -> bool:
        """Whether a file still has the bytes that were kept."""
        for at, mark in self._kept:
            file.seek(at)
            if file.read(len(mark)) != mark:
                return False
        return True
