"""Step views in one file, from which they can be read exactly as they were published.

An event file holds what charts need, in float32. This file holds all that a consumer was given, so that a diagnosis of its
views finds what was found in the fit. It has data only: JSON, and numbers as compressed bytes.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.codec import decode, encode
from lightning_hooks.errors import RuleError
from lightning_hooks.plan.row_index import RowIndex
from lightning_hooks.records.facts import StepFacts
from lightning_hooks.records.saved_facts import changes, facts_of
from lightning_hooks.records.saved_index import SavedIndex
from lightning_hooks.records.step_view import StepView
from lightning_hooks.rules.schedule import EveryN
from lightning_hooks.stats.accumulators import MOMENTS
from lightning_hooks.untrusted import UnreadableError, decompress, parse_json, read_bytes

_START: Final = b"lightning_hooks views 1\n"
_MOST: Final = 2**30
"""The limit of a file, and of each of its parts when it is decompressed, in bytes."""


@dataclass(frozen=True)
class _SavedView:
    """What differs from view to view, besides numbers of rows. `due` are positions in the schedules of the row index."""

    step: int
    wall_time: float
    due: list[int]
    summaries: Mapping[str, float] = field(default_factory=dict)
    metrics: list[tuple[int, str, float]] = field(default_factory=list)
    vectors: list[tuple[int, str, list[float]]] = field(default_factory=list)


@dataclass(frozen=True)
class _Segment:
    """Successive views with one row index, and their arrays in the order in which their bytes follow."""

    index: str
    views: list[_SavedView]
    arrays: list[tuple[str, tuple[int, ...], int]]
    """The name of an accumulator, the shape [views, rows that keep its state, columns], and the number of compressed bytes."""


@dataclass(frozen=True)
class _Head:
    segments: list[_Segment]
    facts: list[tuple[int, str | None]]
    """The position of each view whose facts are not those of the view before, and the difference; None for unknown facts."""


def write_views(path: Path, views: Sequence[StepView]) -> None:
    """Write views in the order in which they were published.

    Args:
        path: of the file, which is replaced.
        views: of one monitor and one run.

    Raises:
        RuleError: a schedule is due in a view at which no row of the view has a request.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "fit.views")
        >>> write_views(path, [StepView(3, summaries={"run/grad_norm": 2.0})])
        >>> [(view.step, view.summaries) for view in read_views(path)]
        [(3, {'run/grad_norm': 2.0})]
    """
    segments, parts = [], []
    for _, group in groupby(views, lambda view: (id(view.rows), id(view.structure), view.stage, view.ranks)):
        segment, content = _packed([*group])
        segments.append(segment)
        parts += content
    head = zlib.compress(json.dumps(encode(_Head(segments, _changes([view.facts for view in views])))).encode())
    path.write_bytes(b"".join([_START, len(head).to_bytes(8, "little"), head, *parts]))


def _packed(views: Sequence[StepView]) -> tuple[_Segment, list[bytes]]:
    first = views[0]
    schedules = {schedule: position for position, schedule in enumerate(_schedules(first.rows))}
    text = SavedIndex(first.rows, first.stage, ranks=first.ranks, structure=first.structure).to_json()
    saved = [
        _SavedView(
            view.step,
            view.wall_time,
            _positions(view, schedules),
            view.summaries,
            [(row, name, value) for (row, name), value in view.metrics.items()],
            [(row, name, values.tolist()) for (row, name), values in view.vectors.items()],
        )
        for view in views
    ]
    stacked = {MOMENTS.name: np.stack([view.moments for view in views])}
    stacked |= {name: np.stack([view.kept[name] for view in views]) for name in first.kept}
    parts = {name: zlib.compress(_bytes_of(numbers)) for name, numbers in stacked.items()}
    return _Segment(text, saved, [(name, stacked[name].shape, len(part)) for name, part in parts.items()]), [*parts.values()]


def _schedules(index: RowIndex) -> list[EveryN]:
    """The schedules of the requests, in an order that a saved index keeps."""
    rows = (*index.requested_rows, *index.groups)
    return list(dict.fromkeys(schedule for each in rows for schedule, _ in each.requests))


def _positions(view: StepView, schedules: Mapping[EveryN, int]) -> list[int]:
    unknown = view.due - schedules.keys()
    if unknown:
        raise RuleError(f"view of step {view.step}: {next(iter(unknown))} is due, and no row has a request at it")
    return sorted(map(schedules.__getitem__, view.due))


def _bytes_of(numbers: NDArray[np.float64]) -> bytes:
    """The bytes of an array [views, rows, columns], ordered so that they compress well.

    Neighbours are the same number at successive steps, and of those first their first bytes, then their second ones.
    """
    by_row = np.ascontiguousarray(numbers.transpose(2, 1, 0), dtype="<f8")
    return by_row.reshape(-1, 1).view(np.uint8).T.tobytes()


def _numbers_of(content: bytes, shape: Sequence[int]) -> NDArray[np.float64]:
    views, rows, columns = shape
    if len(content) != 8 * math.prod(shape):
        raise ValueError(f"{len(content)} bytes for numbers of shape {tuple(shape)}")
    flat = np.ascontiguousarray(np.frombuffer(content, dtype=np.uint8).reshape(8, -1).T).view("<f8")
    return np.ascontiguousarray(flat.reshape(columns, rows, views).transpose(2, 1, 0), dtype=np.float64)


def _changes(facts: Iterable[StepFacts | None]) -> list[tuple[int, str | None]]:
    saved: list[tuple[int, str | None]] = []
    current: StepFacts | None = None
    known: StepFacts | None = None  # the last facts that were saved
    for position, each in enumerate(facts):
        if position == 0 or each is not current:
            saved.append((position, None if each is None else changes(known, each)))
            current, known = each, each or known
    return saved


def read_views(path: Path) -> list[StepView]:
    """The views of a file of `write_views`.

    Args:
        path: of the file; somebody else may have written it.

    Raises:
        UnreadableError: there is no such file, it has no step views, or it is damaged.
    """
    content = read_bytes(path, _MOST)
    if not content.startswith(_START):
        raise UnreadableError(f"{path} has no step views of this version")
    try:
        start = len(_START) + 8
        size = int.from_bytes(content[len(_START) : start], "little")
        head = decode(_Head, parse_json(decompress(content[start : start + size], _MOST)), "views")
        facts = _expanded(head.facts, sum(len(segment.views) for segment in head.segments))
        views: list[StepView] = []
        start += size
        for segment in head.segments:
            numbers = {}
            for name, shape, length in segment.arrays:
                numbers[name] = _numbers_of(decompress(content[start : start + length], _MOST), shape)
                start += length
            views += _unpacked(segment, numbers, facts[len(views) :])
        return views
    except (KeyError, IndexError, TypeError, ValueError, RuleError) as error:
        raise UnreadableError(f"the step views in {path} are damaged: {type(error).__name__}: {error}") from error


def _unpacked(
    segment: _Segment, numbers: Mapping[str, NDArray[np.float64]], facts: Sequence[StepFacts | None]
) -> list[StepView]:
    saved = SavedIndex.from_json(segment.index)
    schedules = _schedules(saved.index)
    for array in numbers.values():
        array.flags.writeable = False
    return [
        StepView(
            view.step,
            stage=saved.stage,
            wall_time=view.wall_time,
            rows=saved.index,
            moments=numbers[MOMENTS.name][i],
            summaries=view.summaries,
            due=frozenset(schedules[position] for position in view.due),
            kept={name: array[i] for name, array in numbers.items() if name != MOMENTS.name},
            metrics={(row, name): value for row, name, value in view.metrics},
            vectors={(row, name): np.array(values, dtype=np.float64) for row, name, values in view.vectors},
            ranks=saved.ranks,
            facts=facts[i],
            structure=saved.structure,
        )
        for i, view in enumerate(segment.views)
    ]


def _expanded(saved: Sequence[tuple[int, str | None]], count: int) -> list[StepFacts | None]:
    """The facts of each view: the same object as long as nothing changed."""
    known = dict(facts_of((position, text) for position, text in saved if text is not None))
    facts: list[StepFacts | None] = []
    for (position, _), (end, _) in pairwise([*saved, (count, None)]):
        facts += [known.get(position)] * (end - position)
    if len(facts) != count:
        raise ValueError(f"facts of {len(facts)} views, of {count}")
    return facts
