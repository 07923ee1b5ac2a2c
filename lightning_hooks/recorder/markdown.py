"""`record.md`: a record in words, in the order in which a person asks: what, where, from what, and how it came."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from lightning_hooks.recorder.record import FlightRecord, Growth, Operation, Place, TensorSummary, TrailEntry, Verdict

LARGEST: Final = {"float16": 65504.0, "bfloat16": 3.3895313892515355e38, "float32": 3.4028234663852886e38}
"""The largest number of a dtype."""
_MADE_BY_CALLS: Final = (Verdict.FORWARD, Verdict.BACKWARD, Verdict.SCALER, Verdict.NOT_REPRODUCED)
"""The verdicts of which a call gave the first bad number; a trail without a run of the step again ends with that call."""
_CALL_HEADS: Final = (
    *("step", "batch", "call", "row", "tensor"),
    *("smallest", "largest", "smallest magnitude", "largest magnitude", "not finite"),
)
_MAX_CALLS = 24  # calls of the trail in words; record.json has all
_MAX_STEPS = 12  # steps of the growth in words


def to_markdown(record: FlightRecord, replay: str = "") -> str:
    """A record as Markdown.

    Args:
        record: the record.
        replay: the command that replays the step; empty if it cannot be replayed.
    """
    return "\n".join(_lines(record, replay)) + "\n"


def _lines(record: FlightRecord, replay: str) -> Iterator[str]:
    yield f"# Flight record of step {record.step}"
    yield ""
    yield f"**{record.verdict.replace('_', ' ').capitalize()}.** {record.message}"
    if record.reproduced is not None:
        yield ""
        yield "The step was run again in place: " + ("it gave the same." if record.reproduced else "it gave finite numbers.")
    if record.failure is not None:
        yield from ("", f"It ended with {record.failure.type}: {record.failure.message}")
        if record.failure.module:
            yield f"The innermost module of the traceback is {record.failure.module}."
    if record.place is not None:
        yield from ("", "## Where", "")
        yield from _where(record.place, noticed(record))
        if record.operation is not None:
            yield from _operation(record.operation)
    if record.inputs:
        yield from ("", "## What it read", "")
        read = ("tensor", "shape", "dtype", "smallest", "largest", "smallest magnitude", "headroom", "not finite")
        yield from _table(read, map(_summary, record.inputs))
    if record.trail:
        yield from ("", f"## The last {min(len(record.trail), _MAX_CALLS)} calls", "")
        yield from _table(_CALL_HEADS, map(_call, record.trail[-_MAX_CALLS:]))
    if record.growth is not None and record.growth.steps:
        yield from ("", f"## {title_of(record.growth)} at the last steps", "")
        yield from _growth(record.growth)
    if record.context:
        yield from ("", "## Context", "")
        yield from (f"- {name}: {_value(value)}" for name, value in record.context.items())
    if record.notes:
        yield from ("", "## Notes", "")
        yield from (f"- {note}" for note in record.notes)
    yield from ("", "## Replay", "")
    yield f"    {replay}" if replay else "The step cannot be replayed; see the notes."
    if record.failure is not None and record.failure.traceback:
        yield from ("", "## Traceback", "", "```", record.failure.traceback.rstrip(), "```")


def noticed(record: FlightRecord) -> TrailEntry | None:
    """The call of the trail whose tensor was the first that is not finite, if nothing more is known of that tensor."""
    place = record.place
    is_known = place is None or place.result is not None or record.verdict not in _MADE_BY_CALLS or not record.trail
    return None if is_known or not record.trail[-1].nonfinite else record.trail[-1]


def _where(place: Place, entry: TrailEntry | None) -> Iterator[str]:
    gap = place.gap
    name, is_sure = (place.module_text, True) if gap is None else (gap.at or "the model itself", gap.at == place.module)
    of_class = f" ({place.type})" if place.type and is_sure else ""
    yield f"- {'module' if gap is None else 'first noticed at'}: {name}{of_class}"
    if place.tensor:
        yield f"- tensor: {place.tensor}, {place.direction}"
    call = f"call {place.call + 1} of the module, " if place.tensor else ""
    yield f"- {call}batch {place.micro_batch + 1} of step {place.step}"
    if place.world_size > 1:
        yield f"- rank {place.rank} of {place.world_size}"
    result = place.result
    if result is not None and result.nonfinite:
        counts = {"NaN": result.nan, "+Inf": result.positive_infinite, "−Inf": result.negative_infinite}
        yield f"- {', '.join(f'{count} {name}' for name, count in counts.items() if count)} of {_size(result.shape)} elements"
        if result.first is not None:
            yield f"- the first at {list(result.first)}"
    elif entry is not None:
        yield f"- not finite in the {title_of(entry)}: {entry.nonfinite_text}"


def _operation(operation: Operation) -> Iterator[str]:
    yield f"- operation: `{operation.name}`" + (f", backward of {operation.node}" if operation.node else "")
    if operation.source:
        yield f"- line: {operation.source}" + (f": `{operation.line.strip()}`" if operation.line else "")


def _summary(tensor: TensorSummary) -> tuple[str, ...]:
    largest, reached = LARGEST.get(tensor.dtype), tensor.abs_max
    headroom = "" if largest is None or not reached else f"× {largest / reached:.3g}"
    return (
        tensor.name,
        "×".join(map(str, tensor.shape)) or "scalar",
        tensor.dtype,
        _number(tensor.minimum),
        _number(tensor.maximum),
        _number(tensor.abs_min),
        headroom,
        str(tensor.nonfinite or ""),
    )


def _call(entry: TrailEntry) -> tuple[str, ...]:
    numbers = (str(entry.step), str(entry.micro_batch + 1), str(entry.call + 1))
    name = entry.name or "the model"
    extremes = map(_number, (entry.minimum, entry.maximum, entry.abs_min, entry.abs_max))
    return (*numbers, name, entry.tensor, *extremes, entry.nonfinite_text)


def title_of(row: Growth | TrailEntry) -> str:
    """The tensor of a growth or of a call, with its row; the loss, whose row and tensor have one name, is named once."""
    return row.name if row.name == row.tensor else f"{row.tensor} of {row.name or 'the model'}"


def _growth(growth: Growth) -> Iterator[str]:
    pairs = list(zip(growth.steps, growth.abs_max, strict=True))
    # Spread the steps evenly over the range, and include the last one.
    interval = max(1, -(-len(pairs) // _MAX_STEPS))
    selected = pairs[::-1][::interval][::-1]
    yield from _table(("step", "largest magnitude"), ((str(step), _number(value)) for step, value in selected))


def _table(heads: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(heads)} |"
    yield f"|{'|'.join('---' for _ in heads)}|"
    for row in rows:
        cells = (cell.replace("|", "\\|") for cell in row)
        yield f"| {' | '.join(cells)} |"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _size(shape: tuple[int, ...]) -> int:
    return math.prod(shape)


def _value(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_value(each)}" for key, each in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_value, value))
    return f"{value:.6g}" if isinstance(value, float) else str(value)
