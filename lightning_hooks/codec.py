"""Codec: dataclasses as plain values that JSON can hold, and back by the type annotations of their fields.

A dataclass is a mapping with its fields as keys, or a list of their values if it is a `row`. A named tuple, a tuple and a list
are lists; the value of an enum and the text of a path stand for them. JSON has no NaN and no infinity: they are the words
`nan`, `inf` and `-inf`. A key that no field has is ignored, and a field that an older file lacks has its default.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache, partial
from numbers import Integral, Real
from pathlib import PurePath
from typing import Any, Final, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from lightning_hooks.errors import RuleError, shown

T = TypeVar("T")
Decoder = Callable[[Any, str], Any]
_WORDS: Final = ("nan", "inf", "-inf")
_UNCHANGED: Final = (int, str, bool, types.NoneType)
_MOST: Final = 2**63  # the first count that nobody has reached
_EXPECTED: Final[Mapping[Any, str]] = {
    int: "an integer below 2**63",
    float: f"a number, or one of {', '.join(_WORDS)}",
    str: "a string",
    bool: "true or false",
    types.NoneType: "null",
}


def row(kind: type[T]) -> type[T]:
    """Save a dataclass as a list of the values of its fields, without their names: for values that a file has by the thousand.

    Example:
        >>> from dataclasses import dataclass
        >>> @row
        ... @dataclass
        ... class Corner:
        ...     step: int
        ...     value: float = 0.0
        >>> encode(Corner(3, 0.5)), decode(Corner, [4], "corner")
        ([3, 0.5], Corner(step=4, value=0.0))
    """
    kind.__saved_as_row__ = True  # type: ignore[attr-defined]
    return kind


def bare(kind: type[T]) -> type[T]:
    """Save a dataclass with one field as the value of the field alone.

    Example:
        >>> from dataclasses import dataclass
        >>> @bare
        ... @dataclass
        ... class Steps:
        ...     ranges: list[tuple[int, int]]
        >>> encode(Steps([(0, 9)])), decode(Steps, [[0, 9]], "steps")
        ([[0, 9]], Steps(ranges=[(0, 9)]))
    """
    kind.__saved_bare__ = True  # type: ignore[attr-defined]
    return kind


def saved_as(key: str = "", *, or_absent: bool = False) -> Mapping[str, Any]:
    """The metadata of a field that is saved in another way than by its name.

    Args:
        key: the key of the field; empty for its name.
        or_absent: whether the key is absent if the value is None; otherwise the value is null.
    """
    return {"saved key": key, "saved or absent": or_absent}


def encode(value: Any) -> Any:
    """A value as plain values: mappings with strings as keys, lists, strings, finite numbers, True, False and None.

    A value of another type becomes its text, so that a record of a run is written whatever a user's object is.

    Example:
        >>> encode({"losses": (0.5, math.inf), "folder": PurePath("logs")})
        {'losses': [0.5, 'inf'], 'folder': 'logs'}
    """
    if isinstance(value, Enum):
        return encode(value.value)
    if type(value) in _UNCHANGED:
        return value
    if isinstance(value, Real):
        number = int(value) if isinstance(value, Integral) else float(value)
        return number if math.isfinite(number) else str(number)
    if isinstance(value, Mapping):
        return {str(encode(key)): encode(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        # A list may have thousands of numbers, so that it pays not to call the function for each.
        return [each if type(each) in _UNCHANGED else encode(each) for each in value]
    if not is_dataclass(type(value)):
        return str(value)
    kind: Any = type(value)
    known = _fields(kind)
    if hasattr(kind, "__saved_bare__"):
        return encode(getattr(value, known[0].name))
    if _is_row(kind):
        return [encode(getattr(value, each.name)) for each in known]
    values = ((each, getattr(value, each.name)) for each in known)
    return {each.key: encode(inner) for each, inner in values if inner is not None or not each.or_absent}


def decode(kind: type[T], plain: Any, where: str) -> T:
    """The value that `encode` was given.

    Args:
        kind: the type of the value: a dataclass, or any type that its fields may have.
        plain: the result of `encode`, perhaps after JSON; somebody else may have written it.
        where: names the value in messages.

    Raises:
        RuleError: a value is missing or cannot be one that `encode` has returned; the message begins with its dotted key.

    Example:
        >>> decode(tuple[int, ...], [1, "x"], "shape")
        Traceback (most recent call last):
        lightning_hooks.errors.RuleError: shape[1] must be an integer below 2**63, got 'x'
    """
    decoded: T = _decoder(kind)(plain, where)
    return decoded


def _is_row(kind: Any) -> bool:
    """Whether values of a dataclass or a named tuple are saved as lists."""
    return hasattr(kind, "__saved_as_row__") or hasattr(kind, "_fields")


class _Field(NamedTuple):
    name: str
    key: str
    decode: Decoder
    is_needed: bool
    or_absent: bool


@cache
def _fields(kind: Any) -> tuple[_Field, ...]:
    """The fields of a dataclass or a named tuple that its constructor takes, such as `Timeline` or `Timeline[str]`."""
    kind, arguments = get_origin(kind) or kind, get_args(kind)
    hints = get_type_hints(kind)
    if arguments:
        hints = {name: hint[arguments] if getattr(hint, "__parameters__", ()) else hint for name, hint in hints.items()}
    if not is_dataclass(kind):
        defaults = kind._field_defaults
        return tuple(_Field(name, name, _decoder(hints[name]), name not in defaults, False) for name in kind._fields)
    return tuple(
        _Field(
            each.name,
            each.metadata.get("saved key") or each.name,
            _decoder(hints[each.name]),
            each.default is MISSING and each.default_factory is MISSING,
            each.metadata.get("saved or absent", False),
        )
        for each in fields(kind)
        if each.init
    )


def _decoder(kind: Any) -> Decoder:
    """The function that decodes values of a type; `_fields` keeps it, because the look at a type takes longer than its call."""
    if kind is Any or isinstance(kind, TypeVar):
        return lambda plain, where: plain
    if kind in _EXPECTED:
        return partial(_decode_scalar, kind)
    origin, arguments = get_origin(kind) or kind, get_args(kind)
    if origin is Literal:
        return partial(_decode_choice, {each: each for each in arguments})
    if hasattr(origin, "__saved_bare__"):
        return partial(_decode_bare, kind)
    if is_dataclass(origin) or _is_row(origin):
        return partial(_decode_fields, kind, _is_row(origin))
    inner = [_decoder(each) for each in arguments if each not in (Ellipsis, types.NoneType)]
    if origin in (Union, types.UnionType):
        return partial(_decode_union, inner, types.NoneType in arguments)
    if issubclass(origin, Enum):
        return partial(_decode_choice, {each.value: each for each in origin})
    if issubclass(origin, PurePath):
        return lambda plain, where: origin(_decode_scalar(str, plain, where))
    if issubclass(origin, Mapping):
        return partial(_decode_mapping, inner[0], inner[1], has_numbers=arguments[0] is int)
    if origin is tuple and arguments[-1] is not Ellipsis:
        return partial(_decode_tuple, inner)
    if origin in (tuple, list, Sequence):
        return partial(_decode_list, list if origin is list else tuple, arguments[0], inner[0])
    raise TypeError(f"{kind} is a type that the codec does not decode")


def _decode_scalar(kind: Any, plain: Any, where: str) -> Any:
    if type(plain) is kind and (kind is not int or abs(plain) < _MOST):
        return plain
    if kind is float and isinstance(plain, (int, float)) and not isinstance(plain, bool):
        # float() raises OverflowError if an integer is beyond the range of a float.
        with suppress(OverflowError):
            return float(plain)
    if kind is float and isinstance(plain, str) and plain in _WORDS:
        return float(plain)
    raise _damaged(where, _EXPECTED[kind], plain)


def _decode_choice(choices: Mapping[Any, Any], plain: Any, where: str) -> Any:
    if isinstance(plain, (str, int)) and not isinstance(plain, bool) and plain in choices:
        return choices[plain]
    raise _damaged(where, f"one of {', '.join(map(str, choices))}", plain)


def _decode_union(decoders: Sequence[Decoder], has_none: bool, plain: Any, where: str) -> Any:
    """The value of the first type that accepts it, or the error of the last type."""
    if plain is None and has_none:
        return None
    for each in decoders[:-1]:
        with suppress(RuleError):
            return each(plain, where)
    return decoders[-1](plain, where)


def _decode_mapping(of_key: Decoder, of_value: Decoder, plain: Any, where: str, *, has_numbers: bool) -> dict[Any, Any]:
    values = {}
    for key, value in _mapping(plain, where).items():
        # JSON turns a number that is a key into a string.
        plain_key = int(key) if has_numbers and isinstance(key, str) and key.removeprefix("-").isdecimal() else key
        values[of_key(plain_key, f"a key of {where}")] = of_value(value, f"{where}[{key!r}]")
    return values


def _decode_list(kind: Callable[[Iterable[Any]], Any], item: Any, of_item: Decoder, plain: Any, where: str) -> Any:
    items = _list(plain, where)
    # A list may have thousands of names or numbers, so that it pays to check all their types at once.
    if {*map(type, items)} == {item} and (item is str or (item is int and max(map(abs, items)) < _MOST)):
        return kind(items)
    return kind(of_item(each, f"{where}[{i}]") for i, each in enumerate(items))


def _decode_tuple(decoders: Sequence[Decoder], plain: Any, where: str) -> tuple[Any, ...]:
    items = _list(plain, where)
    if len(items) != len(decoders):
        raise _damaged(where, f"a list of {len(decoders)} values", plain)
    return tuple(each(item, f"{where}[{i}]") for i, (each, item) in enumerate(zip(decoders, items, strict=True)))


def _decode_bare(kind: Any, plain: Any, where: str) -> Any:
    (only,) = _fields(kind)
    return _made(kind, {only.name: only.decode(plain, where)}, where)


def _decode_fields(kind: Any, is_row: bool, plain: Any, where: str) -> Any:
    known = _fields(kind)
    if not is_row:
        values = _mapping(plain, where)
    else:
        items = _list(plain, where)
        if len(items) > len(known):
            raise _damaged(where, f"a list of at most {len(known)} values", plain)
        values = {each.key: item for each, item in zip(known, items, strict=False)}
    given = {}
    for each in known:
        if each.key in values:
            given[each.name] = each.decode(values[each.key], f"{where}.{each.key}")
        elif each.is_needed:
            raise RuleError(f"{where} has no {each.key!r}")
    return _made(kind, given, where)


def _made(kind: Any, values: Mapping[str, Any], where: str) -> Any:
    try:
        return kind(**values)
    except RuleError:
        raise
    except (ValueError, TypeError) as error:
        raise RuleError(f"{where}: {error}") from error


def _mapping(plain: Any, where: str) -> Mapping[Any, Any]:
    if not isinstance(plain, Mapping):
        raise _damaged(where, "a mapping", plain)
    return plain


def _list(plain: Any, where: str) -> Sequence[Any]:
    if not isinstance(plain, (list, tuple)):
        raise _damaged(where, "a list", plain)
    return plain


def _damaged(where: str, expected: str, plain: Any) -> RuleError:
    return RuleError(f"{where} must be {expected}, got {shown(plain)}")
