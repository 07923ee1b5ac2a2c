"""The folder of a record, and its texts."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from lightning_hooks.recorder.files import FOLDER, RECORD, TEXT, to_json, write_atomically
from lightning_hooks.recorder.markdown import to_markdown
from lightning_hooks.recorder.record import FlightRecord


def new_folder(parent: Path) -> Path:
    """A new folder `flight_record` in another one; with a number if there is one already."""
    number = 1
    while True:
        folder = parent / (FOLDER if number == 1 else f"{FOLDER}-{number}")
        with suppress(FileExistsError):
            folder.mkdir(parents=True)
            return folder
        number += 1


def write_texts(record: FlightRecord, folder: Path) -> None:
    """Write `record.json` and `record.md`, each in one piece.

    Raises:
        OSError: the folder cannot be written to.
    """
    replay = f"lightning-hooks replay {json.dumps(str(folder))}" if "batch" in record.files else ""
    write_atomically(folder / RECORD, to_json(record))
    write_atomically(folder / TEXT, to_markdown(record, replay))
