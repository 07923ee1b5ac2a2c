"""Nested values with other tensors: containers, dataclasses and objects are copied, and keep all else that they hold."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, UserDict, defaultdict, deque
from collections.abc import Callable
from copy import copy
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final

from torch import Tensor

from lightning_hooks.errors import UnsupportedError, shortened
from lightning_hooks.nested.kinds import attributes_of, fields_of, is_object, parts_of, parts_of_class, stored_items
from lightning_hooks.nested.pytree import items_of, with_items, with_leaves
from lightning_hooks.nested.tensors import named_tensors

_FILLED: Final = (list, deque, dict, OrderedDict, defaultdict)
"""Containers that are copied and then filled, since they may hold themselves."""
Change = Callable[[Any, str], Any]
"""Returns what takes the place of a part, given the part and its expression, as of `Parts`."""
Note = Callable[[Any], object]
"""Is given the copy of a value before its parts are replaced, since these may hold the value."""


def map_tensors(change: Callable[[Tensor], Tensor], tree: Any, _made: list[tuple[Any, Any]] | None = None) -> Any:
    """The arguments or the result of a call with every tensor replaced, of those that `tensors_in` gives.

    Dataclasses and dictionaries that are not registered with pytree are copied, not constructed again, so that they keep
    attributes that are no arguments of their class. If objects hold each other, their copies hold each other.
    """
    if isinstance(tree, Tensor):
        return change(tree)
    made = [] if _made is None else _made

    def one(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return change(leaf)
        if parts_of_class(leaf) is None:
            return leaf
        for old, new in made:
            if old is leaf:
                return new
        return _rebuilt_class(leaf, lambda part, _: map_tensors(change, part, made), lambda new: made.append((leaf, new)))

    return with_leaves(one, tree)


def map_batch(
    change: Callable[[str, Tensor], Any], batch: Any, *, other: Callable[[Any], Any] = lambda value: value, name: str = "batch"
) -> Any:
    """A batch with every tensor replaced, of those that `named_tensors` gives.

    Args:
        change: called with the expression of each tensor, and the tensor.
        batch: what a data loader gave; it is not changed.
        other: replaces a value that holds no tensor and is no container.
        name: of the batch.

    Raises:
        UnsupportedError: an object with tensors cannot be copied; the message names it.

    Example:
        >>> import torch
        >>> map_batch(lambda name, tensor: f"{name}: {len(tensor)}", (1, torch.ones(3)))
        (1, 'batch[1]: 3')
    """
    copies: dict[int, Any] = {}  # of the values around the present one, by id

    def mapped(value: Any, name: str) -> Any:
        if isinstance(value, Tensor):
            return change(name, value)
        if id(value) in copies:
            return copies[id(value)]
        if parts_of(value) is None or (is_object(value) and not any(True for _ in named_tensors(value))):
            return other(value)

        def note(new: Any) -> None:
            copies[id(value)] = new

        try:
            if is_object(value):
                return _rebuilt_object(value, mapped, other, note, name)
            return _rebuilt(value, lambda part, inner: mapped(part, name + inner), note, name)
        finally:
            copies.pop(id(value), None)

    return mapped(batch, name)


def _rebuilt(value: Any, change: Change, note: Note, name: str) -> Any:
    """A copy of a value of a batch that has parts, with other parts."""
    if type(value) not in _FILLED and items_of(value) is not None:
        parts = parts_of(value)
        names = iter(parts.names if parts is not None else ())
        return with_items(lambda part: change(part, next(names)), value)
    return _rebuilt_class(value, change, note, name)


def _rebuilt_object(value: Any, change: Change, other: Callable[[Any], Any], note: Note, name: str) -> Any:
    new = _copied(value, name)
    note(new)
    parts = parts_of(value)
    names = parts.names if parts is not None else ()
    # Read the attributes of the copy: a class that copies itself may have copied them, too, and let them refer to the copy.
    for attribute, part in attributes_of(new).items():
        inner = f".{attribute}"
        object.__setattr__(new, attribute, change(part, name + inner) if inner in names else other(part))
    return new


def _rebuilt_class(value: Any, change: Change, note: Note, name: str = "") -> Any:
    """A copy of a value for which `parts_of_class` has parts, with other parts."""
    if isinstance(value, tuple):
        return _rebuilt_tuple(value, [change(part, f"[{i}]") for i, part in enumerate(tuple.__iter__(value))])
    if isinstance(value, MappingProxyType):
        items: dict[Any, Any] = {}
        note(proxy := MappingProxyType(items))
        items.update((key, change(part, f"[{key!r}]")) for key, part in (stored_items(value) or {}).items())
        return proxy
    new = _copied(value, name)
    note(new)
    if isinstance(value, (list, deque)):
        _fill_sequence(new, value, change)
    elif isinstance(value, UserDict) and not dataclasses.is_dataclass(value):
        new.data = change(value.data, "")
    else:
        _fill_fields_and_items(new, value, change)
    return new


def _rebuilt_tuple(value: Any, items: list[Any]) -> Any:
    try:
        new = tuple.__new__(type(value), items)
    # A class of compiled code, such as `torch.return_types.max`, has to make its tuples itself.
    except TypeError:
        return type(value)(items)
    if hasattr(value, "__dict__"):
        vars(new).update(vars(value))
    return new


def _fill_sequence(new: Any, value: Any, change: Change) -> None:
    base: Any = list if isinstance(value, list) else deque
    changed = [change(part, f"[{i}]") for i, part in enumerate(base.__iter__(value))]
    base.clear(new)
    base.extend(new, changed)


def _fill_fields_and_items(new: Any, value: Any, change: Change) -> None:
    """Fill the copy of a dataclass, of a dictionary, or of both in one: there an item that is a field is changed once."""
    items = stored_items(value) if isinstance(value, dict) else {}
    changed = {
        name: change(part, f"[{name!r}]" if name in items else f".{name}") for name, part in (fields_of(value) or {}).items()
    }
    for name, part in changed.items():
        object.__setattr__(new, name, part)  # `setattr` would raise for a frozen dataclass.
    for key, part in items.items():
        new[key] = changed[key] if key in changed else change(part, f"[{key!r}]")


def _copied(value: Any, name: str) -> Any:
    """A copy without cached properties, which were computed from the old tensors."""
    try:
        new = _copied_by_class(value)
    except Exception as error:
        what = f"{name}, a {type(value).__qualname__}," if name else f"a {type(value).__qualname__}"
        reason = shortened(f"{type(error).__name__}: {error}", 300)
        raise UnsupportedError(f"{what} holds tensors and cannot be copied ({reason}); give it a __copy__") from error
    for attribute in [*getattr(new, "__dict__", ())]:
        if isinstance(getattr(type(new), attribute, None), cached_property):
            del new.__dict__[attribute]
    return new


def _copied_by_class(value: Any) -> Any:
    # `copy` raises TypeError for an object whose class needs arguments, such as a subclass of OrderedDict.
    try:
        return _copied_dict(value) if isinstance(value, dict) else copy(value)
    except TypeError:
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return dataclasses.replace(value)
        if isinstance(value, dict):
            return type(value)(value)
        raise


def _copied_dict(value: Any) -> Any:
    base: Any = OrderedDict if isinstance(value, OrderedDict) else dict
    kind: Any = type(value)
    copies_itself = hasattr(kind, "__copy__") or kind.__reduce__ not in (object.__reduce__, OrderedDict.__reduce__)
    if copies_itself or kind.items is base.items:
        return copy(value)
    # Do not call `copy`, which would call the method `items` of the class: that may compute the items instead of returning the
    # stored ones.
    new = kind.__new__(kind)
    vars(new).update(vars(value))
    for key, part in dict.items(value):
        base.__setitem__(new, key, part)
    return new
