"""Reads the flight records in the folder of a run, and bounds what the page gets of them.

Somebody else may have written these files, so every list and every text of an answer has a limit.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from lightning_hooks.dashboard.facts import time_and_size
from lightning_hooks.errors import RuleError
from lightning_hooks.recorder.command import replay_command
from lightning_hooks.recorder.files import FOLDER, RECORD, from_json
from lightning_hooks.recorder.markdown import LARGEST, noticed, title_of
from lightning_hooks.recorder.record import FlightRecord, Operation, Place, TensorSummary, Verdict
from lightning_hooks.untrusted import read_bytes

MAX_RECORDS: Final = 20
"""The most records of a run: the first ones, because the first fault is the cause of later ones."""
MAX_BYTES: Final = 8_000_000
"""The most bytes of a `record.json` that is read."""
MAX_CALLS: Final = 1000
"""The most calls of a trail, and the most steps of a growth: the last ones."""
_MOST: Final = 100  # tensors, notes and facts of the context
_LONG: Final = 2000  # characters of a name or a sentence
_LONGEST: Final = 20_000  # characters of a traceback, the last ones
_FARTHEST: Final = 1 << 53  # the first step that JavaScript cannot tell from the next one
_DEPTH: Final = 6  # levels of a nested fact of the context

TITLES: Final[Mapping[Verdict, str]] = {
    Verdict.BATCH: "The batch is not finite",
    Verdict.WEIGHTS: "Weights were bad before the step",
    Verdict.FORWARD: "Forward operation",
    Verdict.BACKWARD: "Backward operation",
    Verdict.UPDATE: "Optimizer update",
    Verdict.GRADIENTS: "Gradients changed before the update",
    Verdict.ALL_REDUCE: "Reduction over ranks",
    Verdict.SCALER: "Overflow under the loss scaler",
    Verdict.NOT_REPRODUCED: "Not reproduced",
    Verdict.EXCEPTION: "Exception",
    Verdict.SIGNAL: "Signal",
}
"""Each verdict as a title."""


class Records:
    """The flight records in the folder of a run. A file is read again only if its time or its size has changed.

    Args:
        folder: the folder of the run.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # By the name of its folder: the time and size of the file when it was read, and the record or what is wrong with it.
        self._read: dict[str, tuple[tuple[int, int], FlightRecord | str]] = {}
        self.refresh()

    def refresh(self) -> bool:
        """Read the files that are new or have changed; whether any is, or is gone."""
        read: dict[str, tuple[tuple[int, int], FlightRecord | str]] = {}
        for file in record_files(self._folder)[:MAX_RECORDS]:
            name = file.parent.name
            changed = time_and_size(file)
            if changed is None:
                continue
            known = self._read.get(name)
            read[name] = known if known is not None and known[0] == changed else (changed, _record(file, changed[1]))
        has_changed = {name: at for name, (at, _) in read.items()} != {name: at for name, (at, _) in self._read.items()}
        self._read = read
        return has_changed

    def found(self) -> dict[str, FlightRecord]:
        """The records that can be read, by the names of their folders."""
        return {name: record for name, (_, record) in self._read.items() if isinstance(record, FlightRecord)}

    def problems(self) -> list[str]:
        """Messages about the records that cannot be read, each beginning with the file."""
        return [f"{name}/{RECORD}: {record}" for name, (_, record) in self._read.items() if isinstance(record, str)]


def listed(records: Mapping[str, FlightRecord]) -> list[dict[str, Any]]:
    """What the page must know of records at first: what happened, and the step and the rows at which it marks each."""
    return [
        {
            "name": name,
            "step": record.step,
            "verdict": str(record.verdict),
            "title": TITLES[record.verdict],
            "severity": "warning" if record.verdict in (Verdict.SCALER, Verdict.SIGNAL) else "critical",
            "message": _text(record.message),
            "module": _text(_module_of(record)),
            "tensor": _text(record.place.tensor) if record.place is not None else "",
        }
        for name, record in records.items()
    ]


def whole(name: str, record: FlightRecord, folder: str | None) -> dict[str, Any]:
    """A record as the page shows it.

    Args:
        name: of the folder of the record.
        record: the record.
        folder: the path of the run; None if it is not on this machine.
    """
    place, growth = record.place, record.growth
    dtype = place.result.dtype if place is not None and place.result is not None else ""
    (about,) = listed({name: record})
    return {
        **about,
        "reproduced": record.reproduced,
        "place": None if place is None else _place(record, place),
        "operation": None if record.operation is None else _operation(record.operation),
        "inputs": [_tensor(each) for each in record.inputs[:_MOST]],
        "trail": [_bounded(vars(each)) for each in record.trail[-MAX_CALLS:]],
        "growth": None
        if growth is None
        else {
            "name": _text(growth.name),
            "tensor": _text(growth.tensor),
            # A damaged record may have more of the ones than of the others.
            **_columns(growth.steps, growth.abs_max),
            "dtype": _text(dtype),
            "largest": LARGEST.get(dtype),
        },
        "context": [[_text(str(key)), _fact(value)] for key, value in _known(record.context)[:_MOST]],
        "failure": None
        if record.failure is None
        else {**_bounded(vars(record.failure)), "traceback": record.failure.traceback[-_LONGEST:]},
        "notes": [_text(each) for each in record.notes[:_MOST]],
        # A record without a batch cannot be replayed, so it has no command here, as it has none in `record.md`.
        "replay": None if folder is None else _text(replay_command(record, Path(folder, name))) or None,
    }


def record_files(folder: Path, names: Sequence[str] | None = None) -> list[Path]:
    """The files of the records in the folder of a run, in the order in which they were written.

    Args:
        folder: the folder of the run.
        names: what is in it; by default it is listed.
    """
    try:
        listed = os.listdir(folder) if names is None else names
    except OSError:
        return []
    folders = sorted(filter(_FOLDERS.fullmatch, listed), key=lambda name: (len(name), name))
    return [file for name in folders if os.path.isfile(file := folder / name / RECORD)]


_FOLDERS: Final = re.compile(rf"{FOLDER}(-[0-9]{{1,9}})?")


def _record(file: Path, size: int) -> FlightRecord | str:
    """The record of a file, or what is wrong with it."""
    if size > MAX_BYTES:
        return f"{size:,} bytes are more than the {MAX_BYTES:,} that are read"
    try:
        record = from_json(read_bytes(file, MAX_BYTES))
    except RuleError as error:
        return str(error)[:_LONG]
    steps = (record.step, *(record.growth.steps if record.growth is not None else ()))
    return record if all(abs(step) < _FARTHEST for step in steps) else "a step is beyond any run"


def _module_of(record: FlightRecord) -> str:
    """The module or parameter whose row shows it; empty if the record is about the whole run."""
    place = record.place
    if place is not None:
        return "" if place.tensor in ("loss", "batch") else place.module if place.gap is None else place.gap.at
    return "" if record.failure is None else record.failure.module or ""


def _place(record: FlightRecord, place: Place) -> dict[str, Any]:
    """A place, with what the trail alone says of the bad tensor."""
    entry = noticed(record)
    gap = None if place.gap is None else {"at": _text(place.gap.at)}
    found = "" if entry is None else _text(f"{title_of(entry)}: {entry.nonfinite_text}")
    return {
        **_bounded(vars(place)),
        "module_text": _text(place.module_text),
        "result": _tensor(place.result),
        "gap": gap,
        "found": found,
    }


def _tensor(tensor: TensorSummary | None) -> dict[str, Any] | None:
    if tensor is None:
        return None
    largest, reached = LARGEST.get(tensor.dtype), tensor.abs_max
    headroom = largest / reached if largest is not None and reached else None
    return {**_bounded(vars(tensor)), "headroom": headroom}


def _operation(operation: Operation) -> dict[str, Any]:
    """An operation without its tensors, which the record lists as its inputs and as the result of its place."""
    return {key: value for key, value in _bounded(vars(operation)).items() if key not in ("inputs", "result")}


def _bounded(values: Mapping[str, Any]) -> dict[str, Any]:
    """Plain values with their texts and lists cut to the limits."""

    def cut(value: Any) -> Any:
        if isinstance(value, str):
            return _text(value)
        return list(value[:_MOST]) if isinstance(value, tuple) else value

    return {key: cut(value) for key, value in values.items()}


def _columns(steps: Sequence[int], abs_max: Sequence[float]) -> dict[str, list[Any]]:
    pairs = [*zip(steps, abs_max, strict=False)][-MAX_CALLS:]
    return {"steps": [step for step, _ in pairs], "abs_max": [value for _, value in pairs]}


def _text(text: str) -> str:
    return text if len(text) <= _LONG else f"{text[: _LONG - 1]}…"


def _known(context: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The facts of the context that say something."""
    return [(key, value) for key, value in context.items() if value not in (None, "", [], {})]


def _fact(value: Any) -> str:
    return _text(_joined(value, _DEPTH))


def _joined(value: Any, depth: int) -> str:
    """A fact of the context in words."""
    if depth == 0 and isinstance(value, Mapping | list | tuple):
        return "…"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_joined(each, depth - 1)}" for key, each in [*value.items()][:_MOST])
    if isinstance(value, list | tuple):
        return ", ".join(_joined(each, depth - 1) for each in value[:_MOST])
    return f"{value:.6g}" if isinstance(value, float) else str(value)[: _LONG + 1]
