"""Reads a few events of a run that are spread over its files: enough for a small curve of the loss in a list of runs.

The index of an event file parses every event. A list of 200 runs cannot wait for that: a glimpse reads the length of every
record, which leads from one record to the next, and the content of at most a thousand of them.
"""

from __future__ import annotations

import json
import math
import os
import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final

from lightning_hooks.dashboard.curves import offered
from lightning_hooks.dashboard.facts import json_object
from lightning_hooks.tensorboard.messages import (
    FOOT,
    HEAD,
    LONGEST,
    DamagedError,
    length_in,
    read_event,
    read_values,
    strings,
)
from lightning_hooks.tensorboard.run_files import event_files
from lightning_hooks.tensorboard.tags import FOUND

_POINTS: Final = 64
"""The places of a run at which its loss is read."""
_TRIES: Final = 16
"""The most records that are read at one place: a logger writes records without a loss between those with one."""
_RECORDS: Final = 500_000
"""The most records of a run that are counted."""
_FARTHEST: Final = 1 << 53
_SCALAR: Final = re.compile(rb"\x0a([\x04-\x7f])([ -\x7e\x80-\xff]*?[lL][oO][sS][sS][ -\x7e\x80-\xff]*?)\x15(.{4})", re.DOTALL)
"""A number in a summary whose tag contains "loss": the length of the tag, the tag, and the float32."""
_RATES: Final = re.compile(rb'"rates": (\[\[\[.{0,2000}?\]\]\])', re.DOTALL)
_SUMMARY: Final = f"{FOUND}/".encode()


@dataclass
class Glimpse:
    """What a few events of a run say.

    Args:
        losses: the loss by step, by the tag of each scalar with "loss" in its name.
        last_step: the last step; None if no event was read.
        rate: the learning rate of the first group of the first optimizer, as it was read at the last step; None if it is not
            known.
        rate_step: that step; -1 if there is none.
        began: the time of the first event in seconds since 1970; None if no event was read.
        ended: likewise of the last one.
        summary: what health rules have found, as the event file holds it; empty if no event that was read has it.
    """

    losses: dict[str, dict[int, float]] = field(default_factory=dict)
    last_step: int | None = None
    rate: float | None = None
    rate_step: int = -1
    began: float | None = None
    ended: float | None = None
    summary: dict[str, Any] = field(default_factory=dict)

    def curve(self) -> tuple[str, list[int], list[float]]:
        """The tag, the steps and the values of the loss; an empty tag if the events that were read have none."""
        tag = next(iter(offered([*self.losses], ())), "")
        points = sorted(self.losses.get(tag, {}).items())
        return tag, [step for step, _ in points], [value for _, value in points]


def glimpse(path: Path) -> Glimpse:
    """A glimpse of a run; what cannot be read is left out.

    Args:
        path: the folder of the run, or one event file.
    """
    seen = Glimpse()
    try:
        files = event_files(path)
    except OSError:
        files = []
    places: list[tuple[Path, list[int]]] = []
    room = _RECORDS
    for file in files:
        starts = _starts(file, room)
        room -= len(starts)
        places.append((file, starts))
    total = sum(len(starts) for _, starts in places)
    for file, starts in places:
        if starts:
            _look(seen, file, starts, max(round(_POINTS * len(starts) / total), 2))
    return seen


def _starts(path: Path, most: int) -> list[int]:
    """The offset of each whole record of a file. The file is read with `pread`, not mapped: another process may cut it off."""
    starts: list[int] = []
    try:
        with open(path, "rb", buffering=0) as file:
            size, at, descriptor = os.fstat(file.fileno()).st_size, 0, file.fileno()
            while len(starts) < most:
                head = os.pread(descriptor, HEAD, at)
                end = at + HEAD + length_in(head) + FOOT
                if len(head) < HEAD or length_in(head) > LONGEST or end > size:
                    break
                starts.append(at)
                at = end
    except OSError:
        return starts
    return starts


def _look(seen: Glimpse, path: Path, starts: Sequence[int], points: int) -> None:
    """Read the records at some places of a file, and its last ones."""
    count = len(starts)
    places = sorted({round(i * (count - 1) / max(points - 1, 1)) for i in range(points)})
    try:
        with open(path, "rb") as file:
            for begin, end in zip(places, [*places[1:], count], strict=True):
                for data in _records(file, starts[begin : min(end, begin + _TRIES)]):
                    if _note(seen, data):
                        break
            # The last records hold the last loss, the last step and, if health rules looked, what they have found.
            has_loss = False
            for data in _records(file, reversed(starts[-_TRIES:])):
                has_loss = _note(seen, data, reads_loss=not has_loss) or has_loss
    except OSError:
        return


def _records(file: BinaryIO, starts: Iterable[int]) -> Iterator[bytes]:
    for start in starts:
        file.seek(start)
        yield file.read(length_in(file.read(HEAD)))


def _note(seen: Glimpse, data: bytes, *, reads_loss: bool = True) -> bool:
    """Note what a record says; whether it holds the loss as a monitor of this package measures it."""
    try:
        event = read_event(data)
    except DamagedError:
        return False
    if event is None:
        return False
    step, time, start, end = event
    if not -1 < step < _FARTHEST:
        return False
    seen.last_step = max(step, seen.last_step or 0)
    if math.isfinite(time) and time > 0:
        seen.began = min(time, seen.began or time)
        seen.ended = max(time, seen.ended or time)
    for found in _RATES.finditer(data):
        rate = _first_rate(found[1])
        if rate is not None and step >= seen.rate_step:
            seen.rate, seen.rate_step = rate, step
    if _SUMMARY in data:
        seen.summary = _summary_in(data[start:end]) or seen.summary
    has_ours = False
    for found in _SCALAR.finditer(data, start, end) if reads_loss else ():
        if found[1][0] != len(found[2]):
            continue
        tag = found[2].decode(errors="replace")
        seen.losses.setdefault(tag, {})[step] = struct.unpack("<f", found[3])[0]
        has_ours = has_ours or tag.endswith("run/loss")
    return has_ours


def _first_rate(text: bytes) -> float | None:
    try:
        rate = json.loads(text)[0][0][0]
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    return float(rate) if isinstance(rate, int | float) and math.isfinite(rate) else None


def _summary_in(summary: bytes) -> dict[str, Any]:
    try:
        for value in read_values(summary):
            if value.kind == "strings" and value.tag.startswith(f"{FOUND}/"):
                return json_object(strings(summary[value.start : value.start + value.size]))
    except DamagedError:
        return {}
    return {}
