"""`record.json`: a record as JSON, and read again with checks."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final

from lightning_hooks.codec import decode, encode
from lightning_hooks.errors import RuleError
from lightning_hooks.recorder.record import FORMAT, FlightRecord
from lightning_hooks.untrusted import MissingError, UnreadableError, parse_json, path_inside, read_bytes

FOLDER: Final = "flight_record"
RECORD: Final = "record.json"
TEXT: Final = "record.md"


def to_json(record: FlightRecord) -> str:
    """A record as JSON; numbers that JSON does not have become texts."""
    return json.dumps(encode(record), indent=1, allow_nan=False) + "\n"


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
    return decode(FlightRecord, values, "record")


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
