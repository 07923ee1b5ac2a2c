"""Holdings: the objects that a value holds, and how other objects are put in their places.

Containers, attributes, slots, attributes of classes, and the defaults and closures of functions get their old objects back in
place. A tuple, a bound method or a `partial` cannot change; a value with other objects in their places is made instead.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from types import BuiltinMethodType, CellType, FunctionType, MappingProxyType, MethodType, MethodWrapperType
from typing import Any, Final

from lightning_hooks.nested.kinds import mapping_behind, slots_of
from lightning_hooks.snapshot.contents import are_same, contents_of, put_contents

_NOTHING: Final = object()
"""Stands for the content of an empty slot or cell."""
_BOUND: Final = (BuiltinMethodType, MethodWrapperType)
_WRAPPING: Final = (staticmethod, classmethod)


@dataclass(frozen=True)
class Holding:
    """Some objects that a value holds.

    Args:
        contents: the objects.
        name_of: the name of the object with an index, as it follows the name of the value.
        put: puts objects into the places of the contents; None if the value cannot change.
        rebuild: makes a value that holds other objects; None if none can be made.
    """

    contents: list[Any]
    name_of: Callable[[int], str]
    put: Callable[[list[Any]], object] | None = None
    rebuild: Callable[[list[Any]], Any] | None = None


def holding_of_container(value: Any) -> Holding | None:
    """The items of a container, or the keys and values of a dictionary; None for other values."""
    contents = contents_of(value)
    if contents is None:
        return None
    if isinstance(value, dict):
        count = len(contents) // 2

        def name_of(index: int) -> str:
            return f"[{contents[index % count]!r}]" if index >= count else f".keys()[{index}]"

        return Holding(contents, name_of, partial(put_contents, value))
    if isinstance(value, tuple):
        rebuild = getattr(type(value), "_make", tuple if type(value) is tuple else None)
        return Holding(contents, _indexed, rebuild=rebuild)
    return Holding(contents, _indexed, None if isinstance(value, frozenset) else partial(put_contents, value))


def holding_of_attributes(attributes: dict[str, Any]) -> Holding:
    """The attributes in the `__dict__` of an object."""
    contents = contents_of(attributes) or []
    count = len(contents) // 2
    return Holding(contents, lambda index: f".{contents[index % count]}", partial(put_contents, attributes))


def holding_of_slots(value: Any) -> Holding | None:
    """The attributes in the `__slots__` of an object; None if its class has none."""
    slots = list(slots_of(type(value)))
    if not slots:
        return None

    def read(slot: Any) -> Any:
        try:
            return slot.__get__(value)
        except AttributeError:
            return _NOTHING

    def put(contents: list[Any]) -> None:
        for slot, content in zip(slots, contents, strict=True):
            if read(slot) is not content:
                slot.__delete__(value) if content is _NOTHING else slot.__set__(value, content)

    return Holding([read(slot) for slot in slots], lambda index: f".{slots[index].__name__}", put)


def holding_of_class(kind: type) -> Holding:
    """The attributes of a class, without those that Python sets."""
    contents = _contents_of_class(kind)
    count = len(contents) // 2

    def put(wanted: list[Any]) -> None:
        current = _contents_of_class(kind)
        if are_same(current, wanted):
            return
        old = dict(zip(wanted[:count], wanted[count:], strict=True))
        for name in current[: len(current) // 2]:
            if name not in old:
                type.__delattr__(kind, name)
        for name, value in old.items():
            if vars(kind).get(name, _NOTHING) is not value:
                type.__setattr__(kind, name, value)

    return Holding(contents, lambda index: f".{contents[index % count]}", put)


def _contents_of_class(kind: type) -> list[Any]:
    own = {name: value for name, value in vars(kind).items() if not name.startswith("__") and name != "_abc_impl"}
    return [*own.keys(), *own.values()]


def holding_of_function(function: FunctionType) -> Holding:
    """The defaults of a function, its attributes, and the variables of its closure."""
    cells, names = list(function.__closure__ or ()), function.__code__.co_freevars
    contents = [function.__defaults__, function.__kwdefaults__, function.__dict__, *map(_read_cell, cells)]

    def put(wanted: list[Any]) -> None:
        if function.__defaults__ is not wanted[0]:
            function.__defaults__ = wanted[0]
        if function.__kwdefaults__ is not wanted[1]:
            function.__kwdefaults__ = wanted[1]
        for cell, content in zip(cells, wanted[3:], strict=True):
            if _read_cell(cell) is not content:
                _write_cell(cell, content)

    return Holding(
        contents, lambda index: (".__defaults__", ".__kwdefaults__", "", *(f".{name}" for name in names))[index], put
    )


def _read_cell(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _NOTHING


def _write_cell(cell: CellType, content: Any) -> None:
    if content is _NOTHING:
        del cell.cell_contents
    else:
        cell.cell_contents = content


def other_holdings(value: Any) -> Iterator[Holding]:
    """What methods, `partial` objects, properties, mapping proxies and dictionaries with a default hold."""
    if isinstance(value, MethodType):
        bound = value.__self__, value.__func__
        yield Holding(
            list(bound), lambda index: ".__self__" if index == 0 else "", rebuild=lambda new: MethodType(new[1], new[0])
        )
    elif isinstance(value, _BOUND):
        name = value.__name__
        yield Holding([value.__self__], lambda _: ".__self__", rebuild=lambda new: getattr(new[0], name))
    elif isinstance(value, _WRAPPING):
        yield Holding([value.__func__], lambda _: "")
    elif isinstance(value, property):
        yield Holding([value.fget, value.fset, value.fdel], lambda _: "")
    elif type(value) is partial:
        contents = [value.func, value.args, value.keywords]
        yield Holding(
            contents,
            lambda index: (".func", ".args", ".keywords")[index],
            rebuild=lambda new: partial(new[0], *new[1], **new[2]),
        )
    elif isinstance(value, MappingProxyType):
        mapping = mapping_behind(value)
        # A proxy may show the attributes of a class, which `holding_of_class` restores.
        if "__module__" not in mapping:
            yield Holding([mapping], lambda _: "")
    elif isinstance(value, defaultdict):
        yield Holding(
            [value.default_factory], lambda _: ".default_factory", lambda new: setattr(value, "default_factory", new[0])
        )


def _indexed(index: int) -> str:
    return f"[{index}]"
