"""The record of a set-up as one value of plain data, and the file in which it is kept."""

from __future__ import annotations

import gzip
import json
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from tests.golden.events import decode, normalised
from tests.golden.observing import normal
from tests.golden.setups import SETUPS

RECORDED = Path(__file__).parent / "recorded"
# Versions, in the context of a flight record.
_VOLATILE = ("torch", "lightning", "lightning_hooks", "python", "transformers")


def record(name: str) -> dict[str, Any]:
    """Run a set-up in a temporary folder, and return its record."""
    # A message breaks a path that is longer than a line, so the folder has a short path.
    with tempfile.TemporaryDirectory(dir="/tmp" if Path("/tmp").is_dir() else None) as root:
        folder = Path(root) / "run"
        processes = SETUPS[name](folder)
        clean = partial(normal, folder=folder)
        found = {
            "processes": processes,
            "events": decode(folder, clean),
            "files": sorted({clean(str(path)) for path in folder.rglob("*") if path.is_file()}),
            "journals": {_name(path, folder): _lines(path, folder) for path in sorted(folder.rglob("findings*.jsonl"))},
            "summaries": {_name(path, folder): _json(path, folder) for path in sorted(folder.rglob("summary*.json"))},
            "records": {_name(path, folder): _flight_record(path, folder) for path in _flight_records(folder)},
        }
    # What is compared is what can be read from a file again.
    plain: dict[str, Any] = json.loads(json.dumps(found))
    return plain


def save(name: str, recorded: dict[str, Any]) -> None:
    """Write the record of a set-up; equal records give equal files."""
    content = json.dumps(recorded, sort_keys=True, separators=(",", ":")).encode()
    RECORDED.mkdir(exist_ok=True)
    path_of(name).write_bytes(gzip.compress(content, mtime=0))


def load(name: str) -> dict[str, Any]:
    """Read the record of a set-up."""
    recorded: dict[str, Any] = json.loads(gzip.decompress(path_of(name).read_bytes()))
    return recorded


def path_of(name: str) -> Path:
    """The file of the record of a set-up."""
    return RECORDED / f"{name}.json.gz"


def _flight_records(folder: Path) -> list[Path]:
    return sorted(path for name in ("record.json", "rank-*.json") for path in folder.rglob(f"flight_record/{name}"))


def _name(path: Path, folder: Path) -> str:
    return path.relative_to(folder).as_posix()


def _json(path: Path, folder: Path) -> Any:
    return normalised(json.loads(path.read_text(encoding="utf-8")), partial(normal, folder=folder))


def _lines(path: Path, folder: Path) -> list[Any]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return [normalised(json.loads(line), partial(normal, folder=folder)) for line in lines]


def _flight_record(path: Path, folder: Path) -> Any:
    found = _json(path, folder)
    found["context"] = {key: value for key, value in found["context"].items() if key not in _VOLATILE}
    return found
