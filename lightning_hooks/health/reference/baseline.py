"""Baseline: a reference in one small JSON file, which a repository can hold."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

import numpy as np

from lightning_hooks.codec import decode, encode
from lightning_hooks.comparing.bands import Bands
from lightning_hooks.errors import RuleError, shown
from lightning_hooks.health.reference.record import Record
from lightning_hooks.health.reference.reference import Reference
from lightning_hooks.health.reference.traits import Traits
from lightning_hooks.health.window import Array
from lightning_hooks.records.facts import Structure
from lightning_hooks.untrusted import UnreadableError, decompress, read_json
from lightning_hooks.whole_files import write_whole

FORMAT: Final = "lightning_hooks baseline"
VERSION: Final = 1
_UNITS: Final = 512.0  # numbers are kept as integers of 1/512, so that a factor is exact to 0.2 %
_NOTHING: Final = -32768
_BUCKETS: Final = 2 * 65_536  # bytes of each row; a run has fewer buckets, whose width grows with the steps


def write_baseline(reference: Reference, path: Path) -> int:
    """Write a reference to a file; returns its size in bytes.

    Raises:
        OSError: the file cannot be written.
    """
    text = json.dumps(to_json(reference), separators=(",", ":"), ensure_ascii=False) + "\n"
    content = text.encode()
    write_whole(path, content)
    return len(content)


def read_baseline(path: Path) -> Reference:
    """The reference in a file that `write_baseline` has written.

    Raises:
        RuleError: the file is missing, is no baseline, is damaged, or has another version.
    """
    try:
        saved = read_json(path)
    except UnreadableError as error:
        raise RuleError(f"{path} is not a baseline: {error}") from error
    if not isinstance(saved, dict) or saved.get("format") != FORMAT:
        raise RuleError(f"{path} is not a baseline; `lightning-hooks baseline RUN -o {path.name}` writes one")
    if saved.get("version") != VERSION:
        raise RuleError(
            f"{path} has version {shown(saved.get('version'))} of the format, but this package reads version {VERSION}; "
            "write it again with `lightning-hooks baseline`"
        )
    try:
        return from_json(saved)
    except (KeyError, ValueError, IndexError) as error:
        raise RuleError(f"{path} is damaged: {type(error).__name__}: {error}") from error


def to_json(reference: Reference) -> dict[str, Any]:
    """A reference as plain values."""
    names = sorted(
        {name for bands in reference.bands.values() for name in bands.names}
        | {name for traits in reference.traits.values() for name in _names_of(traits)}
    )
    numbers = {name: number for number, name in enumerate(names)}
    return {
        "format": FORMAT,
        "version": VERSION,
        "runs": encode(reference.records),
        "structure": encode(reference.structure),
        "names": names,
        "bands": encode([_plain_bands(bands, numbers) for bands in reference.bands.values()]),
        "traits": {tensor: _traits_to_json(traits, numbers) for tensor, traits in reference.traits.items()},
    }


def from_json(saved: Mapping[str, Any]) -> Reference:
    """The reference of `to_json`; raises KeyError, IndexError or ValueError, such as a RuleError, if it is damaged."""
    names = decode(list[str], saved["names"], "names")
    bands = [_bands_of(each, names) for each in decode(list[_PlainBands], saved["bands"], "bands")]
    traits = decode(dict[str, _PlainTraits], saved["traits"], "traits")
    return Reference(
        decode(tuple[Record, ...], saved["runs"], "runs"),
        None if saved["structure"] is None else decode(Structure, saved["structure"], "structure"),
        {each.key: each for each in bands},
        {tensor: _traits_of(each, names) for tensor, each in traits.items()},
    )


@dataclass(frozen=True)
class _PlainBands:
    """Bands with the numbers of their rows; the edges are `_packed`."""

    key: tuple[str, str]
    rows: list[int]
    scale: float | None
    low: str
    high: str
    noise: str
    spread: str


def _plain_bands(bands: Bands, numbers: Mapping[str, int]) -> _PlainBands:
    return _PlainBands(
        bands.key,
        [numbers[name] for name in bands.names],
        bands.scale,
        low=_packed(np.floor(bands.low * _UNITS)),
        high=_packed(np.ceil(bands.high * _UNITS)),
        noise=_packed(np.ceil(bands.noise[None] * _UNITS)),
        spread=_packed(np.ceil(bands.spread[None] * _UNITS)),
    )


def _bands_of(plain: _PlainBands, names: Sequence[str]) -> Bands:
    rows = tuple(names[number] for number in plain.rows)
    packed = (plain.low, plain.high, plain.noise, plain.spread)
    low, high, noise, spread = (_unpacked(each, len(rows)) / _UNITS for each in packed)
    if low.shape != high.shape:
        raise ValueError(f"the bands of {plain.key[1]} of {plain.key[0]} have edges of different length")
    return Bands(plain.key, rows, low, high, noise[0], spread[0], plain.scale)


def _packed(units: Array) -> str:
    """Integers [n, rows] as text, row by row."""
    whole = np.where(np.isfinite(units), np.clip(units, _NOTHING + 1, -_NOTHING - 1), _NOTHING).astype("<i2")
    return base64.b64encode(zlib.compress(np.ascontiguousarray(whole.T).tobytes(), 9)).decode()


def _unpacked(text: str, rows: int) -> Array:
    whole = np.frombuffer(decompress(base64.b64decode(text, validate=True), _BUCKETS * rows), dtype="<i2").astype(np.float64)
    if rows == 0 or len(whole) % rows:
        raise ValueError(f"{len(whole)} numbers do not belong to {rows} rows")
    numbers: Array = np.where(whole == _NOTHING, np.nan, whole).reshape(rows, -1).T
    return numbers


def _names_of(traits: Traits) -> set[str]:
    return {*traits.present, *traits.moves, *traits.counts, *traits.digits, *traits.jump, *traits.repeats}


def _traits_to_json(traits: Traits, numbers: Mapping[str, int]) -> dict[str, Any]:
    """Traits by the numbers of their rows. Rows with an equal trait are listed once, beside it."""
    return {
        "present": _grouped(traits.present, numbers),
        "moves": _grouped(traits.moves, numbers),
        "counts": _grouped({name: list(counts) for name, counts in traits.counts.items()}, numbers),
        "digits": _grouped({name: list(digits) for name, digits in traits.digits.items()}, numbers),
        "jump": _grouped({name: float(f"{jump:.3g}") for name, jump in traits.jump.items()}, numbers),
        "repeats": _grouped({name: float(f"{share:.3g}") for name, share in traits.repeats.items()}, numbers),
    }


def _grouped(by_name: Mapping[str, Any], numbers: Mapping[str, int]) -> list[list[Any]]:
    groups: dict[str, list[int]] = {}
    for name, value in by_name.items():
        groups.setdefault(json.dumps(value), []).append(numbers[name])
    return [[json.loads(value), rows] for value, rows in groups.items()]


@dataclass(frozen=True)
class _PlainTraits:
    """Traits as `_traits_to_json` groups them: each value with the numbers of the rows that have it."""

    present: list[tuple[bool | None, list[int]]]
    moves: list[tuple[bool | None, list[int]]]
    counts: list[tuple[tuple[int, ...], list[int]]]
    digits: list[tuple[tuple[int, int], list[int]]]
    jump: list[tuple[float, list[int]]]
    repeats: list[tuple[float, list[int]]]


def _traits_of(plain: _PlainTraits, names: Sequence[str]) -> Traits:
    groups = {each.name: getattr(plain, each.name) for each in fields(plain)}
    return Traits(**{part: {names[i]: value for value, rows in group for i in rows} for part, group in groups.items()})
