"""What a value consists of: the items of containers, the fields of dataclasses, and in a batch the attributes of objects.

Whoever looks for tensors in nested values asks here, so a batch is the same for all of them. No code of a value's class runs: a
class may compute an item whenever it is read, and draw random numbers for it.
"""

from __future__ import annotations

import dataclasses
from collections import UserDict, deque
from collections.abc import Iterator, Mapping
from gc import get_referents
from types import MappingProxyType, MemberDescriptorType, ModuleType
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from lightning_hooks.nested.pytree import items_of

_PLAIN: Final = frozenset({type(None), bool, int, float, complex, str, bytes})
"""Classes of values without parts."""
_SEQUENCES: Final = (list, tuple, deque)


class Parts(NamedTuple):
    """The values that a value consists of.

    Args:
        names: the expression of each part, as it follows the name of the value: `[0]`, `['x']`, `.label`.
        values: the parts.
    """

    names: list[str]
    values: list[Any]


def parts_of(value: Any) -> Parts | None:
    """The parts of a value of a batch; None for a tensor, a number and any other value without parts.

    The parts of a container that pytree knows, and of a `dict`, `UserDict`, `list`, `tuple` or `deque` of any subclass, are its
    items; those of a dataclass are its fields. Of any other object they are its attributes, as batches of graph libraries have.

    Example:
        >>> parts_of({"x": 1, "y": (2, 3)})
        Parts(names=["['x']", "['y']"], values=[1, (2, 3)])
    """
    if type(value) in _PLAIN or isinstance(value, Tensor):
        return None
    # Most batches consist of these three, and pytree takes longer.
    if type(value) is dict:
        return Parts([f"[{key!r}]" for key in value], list(value.values()))
    if type(value) in (list, tuple):
        return _indexed(list(value))
    return _parts_of_registered(value) or parts_of_class(value) or _parts_of_object(value)


def parts_of_class(value: Any) -> Parts | None:
    """The parts of a container or a dataclass whose class pytree does not know; None for other values."""
    if isinstance(value, _SEQUENCES):
        base: Any = next(kind for kind in _SEQUENCES if isinstance(value, kind))
        return _indexed(list(base.__iter__(value)))
    items = stored_items(value) if isinstance(value, Mapping) else None
    fields = fields_of(value)
    if items is None and fields is None:
        return None
    # The fields of an output of Hugging Face's transformers are its items, too.
    others = {name: each for name, each in (fields or {}).items() if items is None or name not in items}
    names = [*(f"[{key!r}]" for key in items or ()), *(f".{name}" for name in others)]
    return Parts(names, [*(items or {}).values(), *others.values()])


def fields_of(value: Any) -> dict[str, Any] | None:
    """The fields of a dataclass that are set, by name; None if the value is no dataclass."""
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return None
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if hasattr(value, field.name)}


def is_named_tuple(value: Any) -> bool:
    """Whether a value is a named tuple, such as a `PackedSequence` of torch."""
    return isinstance(value, tuple) and hasattr(value, "_fields") and hasattr(value, "_make")


def is_object(value: Any) -> bool:
    """Whether a value is nothing but an object with attributes, which a batch may be."""
    if type(value) in _PLAIN or isinstance(value, (Tensor, type, ModuleType)) or callable(value):
        return False
    return items_of(value) is None and parts_of_class(value) is None


def attributes_of(value: Any) -> dict[str, Any]:
    """The attributes that an object stores, in its `__dict__` and its slots, by name."""
    stored = getattr(value, "__dict__", None)
    attributes = dict(stored) if isinstance(stored, dict) else {}
    for slot in slots_of(type(value)):
        try:
            attributes[slot.__name__] = slot.__get__(value)
        except AttributeError:
            continue
    return attributes


def slots_of(kind: type) -> Iterator[MemberDescriptorType]:
    """The descriptors of the `__slots__` of a class and of its bases."""
    for base in kind.__mro__:
        if "__slots__" in vars(base):
            yield from (each for each in vars(base).values() if isinstance(each, MemberDescriptorType))


def stored_items(mapping: Any) -> Any:
    """The items that a mapping stores, without calling code of its class; None if only the class itself can tell its items.

    Registering a class with pytree declares that its items can be read.

    Example:
        >>> class Doubled(dict):
        ...     def __getitem__(self, key):
        ...         return 2 * super().__getitem__(key)
        >>> stored_items(Doubled(a=1))
        {'a': 1}
    """
    if type(mapping) is dict or (torch.compiler.is_compiling() and isinstance(mapping, (dict, MappingProxyType))):
        return mapping
    if isinstance(mapping, dict):
        return dict(dict.items(mapping))
    if isinstance(mapping, UserDict):
        return stored_items(vars(mapping).get("data"))
    if isinstance(mapping, MappingProxyType):
        return stored_items(mapping_behind(mapping))
    return None if items_of(mapping) is None else mapping


def mapping_behind(proxy: MappingProxyType[Any, Any]) -> Any:
    """The mapping that a proxy shows: the one object that it refers to."""
    return get_referents(proxy)[0]


def _parts_of_registered(value: Any) -> Parts | None:
    """The parts of a container that pytree knows."""
    values = items_of(value)
    if values is None:
        return None
    if is_named_tuple(value):
        return Parts([f".{name}" for name in value._fields], values)
    if isinstance(value, _SEQUENCES):
        return _indexed(values)
    items = stored_items(value) if isinstance(value, Mapping) else {}
    if len(items) == len(values) and all(item is part for item, part in zip(items.values(), values, strict=True)):
        return Parts([f"[{key!r}]" for key in items], values)
    # The class was registered by somebody else: look up which attribute holds a part.
    attributes = attributes_of(value)
    names = (next((f".{name}" for name, each in attributes.items() if each is part), None) for part in values)
    return Parts([name or f".<part {i}>" for i, name in enumerate(names)], values)


def _parts_of_object(value: Any) -> Parts | None:
    """The attributes of an object that may hold tensors; None if it has none.

    An attribute that is such an object again is no part: it is rather what the batch was made of, as a data set or a parent.
    """
    if not is_object(value):
        return None
    parts = {name: each for name, each in attributes_of(value).items() if isinstance(each, (Tensor, Mapping)) or _is_nest(each)}
    return Parts([f".{name}" for name in parts], list(parts.values())) if parts else None


def _is_nest(value: Any) -> bool:
    if type(value) in _PLAIN or isinstance(value, (type, ModuleType)) or callable(value):
        return False
    return not is_object(value)


def _indexed(values: list[Any]) -> Parts:
    return Parts([f"[{i}]" for i in range(len(values))], values)
