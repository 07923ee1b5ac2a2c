"""Serialized events into the queue of the logger's own file writer, with a checksum that does not hold the interpreter lock.

The queue, its thread, flushing, rotation and closing stay those of the logger. What is behind private names is looked for, and
where it is not as expected, events go through the public way, only slower.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.summary.writer.record_writer import RecordWriter

from lightning_hooks.tensorboard import checksum


def appender(file_writer: Any) -> Callable[[bytes], None]:
    """A function that appends a serialized event to a file.

    Args:
        file_writer: of a `SummaryWriter`, open.
    """
    queue: Any = getattr(getattr(file_writer, "event_writer", None), "_async_writer", None)
    if not callable(getattr(queue, "write", None)):
        return lambda event: file_writer.add_event(Event.FromString(event))
    _quicken(getattr(queue, "_writer", None))
    return lambda event: queue.write(event)  # looked up each time: it is the logger's, and may be replaced


def _quicken(records: Any) -> None:
    """Let a record writer use a fast checksum, for the logger's own events too; what it writes stays the same."""
    if type(records) is not RecordWriter or "write" in vars(records) or not hasattr(records, "_writer"):
        return
    file, crc32c, masked = records._writer, checksum.find(), checksum.masked

    def write(data: bytes) -> None:
        header = struct.pack("<Q", len(data))
        checked = header + struct.pack("<I", masked(crc32c(header)))
        file.write(b"".join((checked, data, struct.pack("<I", masked(crc32c(data))))))

    records.write = write  # type: ignore[method-assign, unused-ignore]
