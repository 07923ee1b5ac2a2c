"""What files say of rows and of findings, as JSON that somebody else may have written."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final


def json_object(lines: Sequence[str]) -> dict[str, Any]:
    """A JSON object; empty where it is none, as the last line of a file that is being written."""
    try:
        found = json.loads(lines[0]) if lines else {}
    except (ValueError, RecursionError):  # also a number of thousands of digits, and lists in lists in lists
        return {}
    return found if isinstance(found, dict) else {}


def about_rows(lines: Sequence[str]) -> dict[str, dict[str, Any]]:
    """What a JSON object says of rows by name, without what has another type than a monitor writes."""
    found = {name: each for name, each in json_object(lines).items() if isinstance(each, dict)}
    return {name: {key: each[key] for key in _FACTS if key in each and _FACTS[key](each[key])} for name, each in found.items()}


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and 0 <= value < 1 << 53  # beyond, numbers of the page are not exact


_FACTS: Final[Mapping[str, Callable[[Any], bool]]] = {
    "type": lambda value: isinstance(value, str),
    "shape": lambda value: isinstance(value, list) and all(map(_is_count, value)),
    "order": _is_count,
}
"""What `about` says of a row, and what it may be."""
