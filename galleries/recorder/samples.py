"""Records that docs/flight_recorder.md shows: those of two trainings of the gallery, as they are written."""

from __future__ import annotations

import contextlib
import io
import tempfile
from pathlib import Path

from galleries.recorder.catalogue import faulty
from galleries.recorder.fault import fit
from lightning_hooks import FlightRecorder

SHOWN = ("half-scores-overflow", "where-trap")
CALLS = 6


def samples() -> dict[str, str]:
    """The record of each shown training, with its last calls, as a block of Markdown in a page."""
    return {name: f"```markdown\n{record_of(name).strip()}\n```" for name in SHOWN}


def record_of(name: str) -> str:
    """The text of record.md of a training."""
    recorder = FlightRecorder(last=CALLS, weights=True)
    fault = next(each for each in faulty() if each.name == name)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        fit(fault, Path(folder), [recorder])
        assert recorder.folder is not None
        return (recorder.folder / "record.md").read_text(encoding="utf-8").replace(folder, "lightning_logs/version_3")
