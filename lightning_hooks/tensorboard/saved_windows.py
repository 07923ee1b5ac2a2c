"""Reads which steps the events of a run merge, from the texts that `records/saved_window.py` writes. It needs no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeGuard

_STEPS: Final = 1 << 62  # as of `EventFile`: steps of this magnitude are damaged


@dataclass(frozen=True)
class SavedWindow:
    """A window of steps that one event merges.

    Args:
        first: the first step.
        count: the number of steps that were watched.
        extremes: the least and the greatest value of numbers that are no rows, by tag.
    """

    first: int
    count: int
    extremes: Mapping[str, tuple[float, float]] = field(default_factory=dict)


def read_window(text: str, last: int) -> SavedWindow | None:
    """The window of a text; None if the text is damaged, so that its event counts as that of its last step.

    Args:
        text: of the file; somebody else may have written it.
        last: the step of the event.

    Example:
        >>> read_window('{"first": 4, "count": 4, "extremes": {"run/loss": [0.5, "inf"]}}', 7)
        SavedWindow(first=4, count=4, extremes={'run/loss': (0.5, inf)})
        >>> read_window('{"first": 9, "count": 4}', 7) is None
        True
    """
    try:
        saved = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(saved, Mapping):
        return None
    first, count, listed = (saved.get(name) for name in ("first", "count", "extremes"))
    if not _is_whole(first) or not _is_whole(count) or not first <= last or count < 1:
        return None
    pairs = ((str(tag), _pair(each)) for tag, each in (listed.items() if isinstance(listed, Mapping) else ()))
    return SavedWindow(first, count, {tag: pair for tag, pair in pairs if pair is not None})


def _is_whole(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and -_STEPS < value < _STEPS


def _pair(saved: Any) -> tuple[float, float] | None:
    try:
        low, high = (float(each) for each in saved)
    except (TypeError, ValueError, OverflowError):
        return None
    return low, high
