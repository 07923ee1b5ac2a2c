"""The folder of a record: its texts, and the batch, weights and generators beside them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from lightning_hooks.engine.recording.batches import KeptBatch
from lightning_hooks.engine.recording.loop import Loop
from lightning_hooks.engine.recording.restoring import Generators
from lightning_hooks.engine.recording.saving import save_batch, save_generators, save_optimizers, save_weights
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


def save_beside(
    record: FlightRecord,
    folder: Path,
    loop: Loop,
    kept: KeptBatch | None,
    generators: Generators | None,
    keeps: Sequence[str],
) -> FlightRecord:
    """Save what a replay needs; what cannot be saved is a note of the record.

    Args:
        record: the record.
        folder: where its files go.
        loop: the loop that trains.
        kept: the batch under way; None if it is not known.
        generators: the states of the generators when the batch began.
        keeps: what is saved: some of `batch` and `weights`.
    """
    files: dict[str, str] = {}
    notes: list[str] = []

    def save(what: str, saves: Callable[[], Any]) -> None:
        try:
            saved = saves()
        except Exception as error:
            notes.append(f"The {what} could not be saved: {type(error).__name__}: {error}")
            return
        files[what] = saved.file
        notes.extend(saved.notes)

    if "batch" in keeps:
        changed = [] if kept is None else kept.changed()
        if kept is None:
            notes.append("The batch is not kept: the loop has not given it.")
        elif changed:
            notes.append(f"The batch is not kept: {', '.join(changed)} was changed in place since the step began.")
        else:
            save("batch", lambda: save_batch(kept.batch, folder))
        if generators is not None:
            save("generators", lambda: save_generators(folder, generators))
    if "weights" in keeps:
        save("weights", lambda: save_weights(loop.model, folder))
        save("optimizers", lambda: save_optimizers(loop.optimizers(), folder))
    return replace(record, files=files, notes=(*record.notes, *notes))
