"""Reads JSON objects from event files and files of findings, and drops fields of unexpected types.

Somebody else may have written these files, so nothing in them is trusted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final


def json_object(lines: Sequence[str]) -> dict[str, Any]:
    """The JSON object in the first line; empty if it is not a whole JSON object, for example while it is being written."""
    try:
        value = json.loads(lines[0]) if lines else {}
    # Python raises a ValueError also for a number of thousands of digits, and a RecursionError for deep nesting.
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def about_rows(lines: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The facts about rows by name from a JSON object, without fields of other names or types than a monitor writes."""
    rows = {name: each for name, each in json_object(lines).items() if isinstance(each, dict)}
    return {name: {key: each[key] for key in _FACTS if key in each and _FACTS[key](each[key])} for name, each in rows.items()}


def time_and_size(file: Path) -> tuple[int, int] | None:
    """The modification time in nanoseconds and the size of a file; None if the file does not exist or is unreadable."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


def is_count(value: Any) -> bool:
    """Whether a value from JSON is a whole number that JavaScript represents exactly."""
    return isinstance(value, int) and 0 <= value < 1 << 53


_FACTS: Final[Mapping[str, Callable[[Any], bool]]] = {
    "type": lambda value: isinstance(value, str),
    "shape": lambda value: isinstance(value, list) and all(map(is_count, value)),
    "order": is_count,
    "called": lambda value: isinstance(value, bool),
}
"""The fields of a row, each with a function that tells whether a value has the right type."""
