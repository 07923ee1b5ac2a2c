"""`record.json`: a record as JSON, and read again with checks."""

from __future__ import annotations

import json
import math
import os
import types
import typing
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from lightning_hooks.errors import RuleError, shown
from lightning_hooks.recorder.record import FORMAT, FlightRecord
from lightning_hooks.untrusted import MissingError, UnreadableError, parse_json, path_inside, read_bytes

FOLDER: Final = "flight_record"
RECORD: Final = "record.json"
TEXT: Final = "record.md"
_MOST: Final = 2**63  # the first count that no record has reached


def to_json(record: FlightRecord) -> str:
    """A record as JSON; numbers that JSON does not have become texts."""
    return json.dumps(_plain(asdict(record)), indent=1, allow_nan=False) + "\n"


def from_json(text: str | bytes) -> FlightRecord:
    """The record of `to_json`. Fields that a later version of the package has added are ignored.

    Raises:
        RuleError: it is no record, is of a later format, or a field is missing or damaged; the message names the field.

    Example:
        >>> from lightning_hooks.recorder.record import Verdict
        >>> record = FlightRecord(Verdict.EXCEPTION, 3)
        >>> from_json(to_json(record)) == record
        True
    """
    try:
        values = parse_json(text)
    except UnreadableError as error:
        raise UnreadableError(f"this is no flight record: {error}") from None
    if not isinstance(values, dict) or type(values.get("format")) is not int:
        raise UnreadableError("this is no flight record: it has no number `format`")
    if values["format"] > FORMAT:
        raise RuleError(
            f"the flight record has format {values['format']}, and this version of lightning_hooks reads formats up to "
            f"{FORMAT}; install a later version"
        )
    record = _read(FlightRecord, values, "record")
    assert isinstance(record, FlightRecord)
    return record


def read_record(path: str | os.PathLike[str]) -> FlightRecord:
    """The record of a folder, or of a file.

    Raises:
        RuleError: there is none, or it is damaged; the message has the path.
    """
    file = Path(path)
    file = path_inside(file, RECORD) if file.is_dir() else file
    try:
        return from_json(read_bytes(file))
    except MissingError:
        raise MissingError(f"{file}: there is no flight record") from None
    except RuleError as error:
        raise RuleError(f"{file}: {error}") from None


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def _read(kind: Any, value: Any, where: str) -> Any:
    """Convert a value that was read from JSON to a type, such as a dataclass or a tuple of one."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return None if value is None else _read(next(each for each in arguments if each is not type(None)), value, where)
    if is_dataclass(kind) and isinstance(kind, type):
        values = _checked(value, dict, where)
        hints = typing.get_type_hints(kind)
        given = {
            each.name: _read(hints[each.name], values[each.name], f"{where}.{each.name}")
            for each in fields(kind)
            if each.name in values
        }
        try:
            return kind(**given)
        except TypeError as error:
            raise RuleError(f"{where}: {str(error).partition('() ')[2] or error}") from None
    if origin is tuple:
        return tuple(_read(arguments[0], each, f"{where}[{i}]") for i, each in enumerate(_checked(value, list, where)))
    if origin is not None:  # a mapping
        return {key: _read(arguments[1], each, f"{where}.{key}") for key, each in _checked(value, dict, where).items()}
    if kind is float and isinstance(value, str) and value in ("nan", "inf", "-inf"):
        return float(value)
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        try:
            return kind(value)
        except (ValueError, TypeError):
            raise RuleError(f"{where}: {shown(value)} is none of {', '.join(map(str, kind))}") from None
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(_checked(value, int, where))
    return value if kind is Any else _checked(value, kind, where)


def _checked(value: Any, kind: type, where: str) -> Any:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise RuleError(f"{where}: expected {kind.__name__}, got {shown(value)}")
    if isinstance(value, int) and abs(value) >= _MOST:
        raise RuleError(f"{where}: expected a number below 2**63, got {shown(value)}")
    return value
