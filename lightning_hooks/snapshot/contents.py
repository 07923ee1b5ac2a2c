"""Restore what a container or an object holds: the same entries in the same order, in the same container."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from operator import is_
from typing import Any, Final

_DICTS: Final = (OrderedDict, dict)
_KINDS: Final = (*_DICTS, list, deque, set)


def contents_of(holder: Any) -> list[Any] | None:
    """The keys and then the values of a dictionary, or the items of another container; None for other values.

    A class that inherits from a container may compute its items: its own methods are not called.
    """
    if isinstance(holder, (tuple, frozenset)):
        return list(holder)
    kind = _kind_of(holder)
    return None if kind is None else _contents(kind, holder)


def put_contents(holder: Any, contents: list[Any]) -> None:
    """Put contents back into a container, the same container; writes only if they have changed.

    Args:
        holder: a container; if it cannot change, nothing happens.
        contents: what `contents_of` gave.

    Example:
        >>> history = {"losses": [1.0]}
        >>> contents = contents_of(history)
        >>> history["rates"] = []
        >>> put_contents(history, contents)
        >>> history
        {'losses': [1.0]}
    """
    kind = _kind_of(holder)
    if kind is not None and not are_same(_contents(kind, holder), contents):
        _fill_dict(kind, holder, contents) if kind in _DICTS else _fill(kind, holder, contents)


def are_same(current: Sequence[Any], contents: Sequence[Any]) -> bool:
    """Whether two sequences hold the same objects in the same order."""
    return current is contents or (len(current) == len(contents) and all(map(is_, current, contents)))


def _kind_of(holder: Any) -> Any:
    """The class whose methods read and write a container; None if a value is no container, or cannot change."""
    exact = type(holder)
    return exact if exact in _KINDS else next((kind for kind in _KINDS if isinstance(holder, kind)), None)


def _contents(kind: Any, holder: Any) -> list[Any]:
    return [*kind.keys(holder), *kind.values(holder)] if kind in _DICTS else list(kind.__iter__(holder))


def _fill(kind: Any, holder: Any, items: list[Any]) -> None:
    kind.clear(holder)
    kind.update(holder, items) if kind is set else kind.extend(holder, items)


def _fill_dict(kind: Any, holder: Any, contents: list[Any]) -> None:
    count = len(contents) // 2
    items = dict(zip(contents[:count], contents[count:], strict=True))
    for key in [key for key in kind.__iter__(holder) if key not in items]:
        kind.__delitem__(holder, key)
    # Empty a dictionary only to put its keys into their order: at no time should the attributes of a module be gone.
    if not are_same(list(kind.__iter__(holder)), contents[:count]):
        kind.clear(holder)
    for key, value in items.items():
        kind.__setitem__(holder, key, value)
