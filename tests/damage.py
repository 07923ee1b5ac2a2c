"""Damaged versions of a file, for the readers of files that somebody else may have written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

VALUES: SearchStrategy[Any] = st.recursive(
    st.sampled_from(
        [None, True, 0, -1, 7, 2**70, 0.5, float("nan"), float("inf"), "", "x", "float32", "../x", "/etc/passwd", "\ud800"]
    ),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["list", "tensor", "dict", "x"]), inner, max_size=2)
    ),
    max_leaves=3,
)


def damaged(content: bytes, is_json: bool = True) -> SearchStrategy[bytes]:
    """Some bytes changed, the end cut off, or, in JSON, a value replaced, removed or nested deep."""
    positions = st.integers(0, len(content) - 1)
    changed = st.lists(st.tuples(positions, st.integers(0, 255)), min_size=1, max_size=4)
    kinds = [changed.map(lambda changes: _changed(content, changes)), positions.map(lambda end: content[:end])]
    if is_json:
        paths = list(_paths(json.loads(content)))
        replaced = st.tuples(st.sampled_from(paths), VALUES | st.just(_DEEP))
        kinds += [replaced.map(lambda chosen: _replaced(content, *chosen))] * 3
    return st.one_of(kinds)


_DEEP = "nested deep"


def _changed(content: bytes, changes: list[tuple[int, int]]) -> bytes:
    changed = bytearray(content)
    for position, value in changes:
        changed[position] = value
    return bytes(changed)


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from _paths(value[key], (*path, key))


def _replaced(content: bytes, path: tuple[Any, ...], new: Any) -> bytes:
    root = [json.loads(content)]
    holder: Any = root
    for key in (0, *path[:-1]) if path else ():
        holder = holder[key]
    holder[path[-1] if path else 0] = new
    return json.dumps(root[0]).replace(f'"{_DEEP}"', "[" * 5000 + "]" * 5000).encode()
