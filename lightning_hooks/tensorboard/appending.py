"""Serialized events into the event file of the logger.

Where nothing of the logger waits to be written and its file is one of this machine, events that come together are appended to
that file at once: one write of some microseconds. To wake the logger's thread for it takes longer, and from a model that
computes on every processor it takes one away. Everything else goes into the logger's own queue, with a checksum that does not
hold the interpreter lock. Flushing, rotation and closing stay the logger's. What is behind private names is looked for, and
where it is not as expected, events go through the public way, only slower.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from time import perf_counter
from typing import Any, Protocol
from weakref import finalize

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.tensorflow_stub.io.gfile import GFile, LocalFileSystem
from tensorboard.summary.writer.record_writer import RecordWriter

from lightning_hooks.tensorboard import checksum

_SLOW = 5e-3  # seconds
_SLOW_WRITES = 3


class Append(Protocol):
    """What puts events into a file."""

    def __call__(self, *events: bytes) -> None:
        """Append serialized events."""


def appender(file_writer: Any) -> Append:
    """A function that appends serialized events to a file.

    Args:
        file_writer: of a `SummaryWriter`, open.
    """
    queue: Any = getattr(getattr(file_writer, "event_writer", None), "_async_writer", None)
    if not callable(getattr(queue, "write", None)):
        return _each(lambda event: file_writer.add_event(Event.FromString(event)))
    records = getattr(queue, "_writer", None)
    frame = _quicken(records)
    file = getattr(records, "_writer", None)
    if frame is None or type(file) is not GFile or not isinstance(getattr(file, "fs", None), LocalFileSystem):
        return _each(lambda event: queue.write(event))  # looked up each time: it is the logger's, and may be replaced
    return _Direct(queue, file, frame)


def _each(append: Callable[[bytes], None]) -> Append:
    def append_all(*events: bytes) -> None:
        for event in events:
            append(event)

    return append_all


class _Direct:
    """Appends to a file of this machine as long as that is quick and nothing stands before an event in the queue.

    Args:
        queue: of the logger.
        file: of the queue.
        frame: what makes a record of an event.
    """

    def __init__(self, queue: Any, file: GFile, frame: Callable[[bytes], bytes]) -> None:
        self._queue = queue
        self._file = file
        self._frame = frame
        self._left = _SLOW_WRITES  # so many slow writes more, and the disk is left to the thread
        self._open: int | None = None  # the file, which stays open for as long as this lives
        self._closing: finalize[..., _Direct] | None = None

    def __call__(self, *events: bytes) -> None:
        if events and not (self._left > 0 and self._is_idle() and self._append(b"".join(map(self._frame, events)))):
            for event in events:
                self._queue.write(event)

    def _is_idle(self) -> bool:
        """Whether the file is there, open, and holds everything that was to be written before."""
        waiting = getattr(getattr(self._queue, "_byte_queue", None), "unfinished_tasks", 1)
        return waiting == 0 and bool(self._file.write_started) and not self._file.closed

    def _append(self, records: bytes) -> bool:
        """Whether all records are in the file; the file is as before where not."""
        begun = perf_counter()
        try:
            file = self._opened()
            written = os.write(file, records)
            if written < len(records):  # the disk is full: a reader would stop at half a record
                end = os.lseek(file, 0, os.SEEK_CUR)
                if end == os.fstat(file).st_size:
                    os.ftruncate(file, end - written)
                return False
        except OSError:
            self._close()
            return False
        if perf_counter() - begun > _SLOW:
            self._left -= 1
        return True

    def _opened(self) -> int:
        if self._open is not None and os.fstat(self._open).st_nlink == 0:  # somebody has deleted it
            self._close()
        if self._open is None:
            self._open = os.open(self._file.filename, os.O_WRONLY | os.O_APPEND)
            self._closing = finalize(self, os.close, self._open)
        return self._open

    def _close(self) -> None:
        self._open = None
        if self._closing is not None:
            self._closing()


def _quicken(records: Any) -> Callable[[bytes], bytes] | None:
    """Let a record writer use a fast checksum, for the logger's own events too; what it writes stays the same.

    Returns:
        What makes a record of an event; None for a record writer that is not TensorBoard's own.
    """
    if type(records) is not RecordWriter or not hasattr(records, "_writer"):
        return None
    frame = checksum.framing()
    if "write" not in vars(records):
        file = records._writer
        records.write = lambda data: file.write(frame(data))  # type: ignore[method-assign, unused-ignore]
    return frame
