"""The folder of a record: its texts, and the batch, weights and generators beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Final

from lightning_hooks.engine.recording.batches import KeptBatch
from lightning_hooks.engine.recording.saving import save_batch, save_generators, save_optimizers, save_weights
from lightning_hooks.engine.rerun.training import Training
from lightning_hooks.recorder.command import replay_command
from lightning_hooks.recorder.files import FOLDER, RECORD, TEXT, to_json
from lightning_hooks.recorder.markdown import to_markdown
from lightning_hooks.recorder.record import FlightRecord
from lightning_hooks.tensor_kinds import is_sharded
from lightning_hooks.whole_files import write_whole

_CLAIM: Final = "first-rank"
"""The file that the process makes that writes the record."""
_WAIT: Final = 2.0
"""Seconds for which a process whose own numbers are finite waits for one that knows more."""


class RecordFolder:
    """The folder of the record of a run, which the processes of a node may share.

    A process alone makes a new folder, `flight_record` or with a number. Several processes agree on one without exchanging
    anything, since one of them may have died: each takes the first name that was free when the run began, writes a file of its
    own, and whoever is first writes the record.

    Args:
        parent: where the folder goes.
        world_size: the number of processes.
    """

    def __init__(self, parent: Path, world_size: int = 1) -> None:
        self._parent = parent
        self._is_shared = world_size > 1
        self._path = next(path for path in _candidates(parent) if not path.exists())

    def claim(self, *, yields: bool) -> tuple[Path, bool]:
        """Make the folder; returns it, and whether this process writes the record.

        Args:
            yields: whether another process is expected to know more: wait a little for it.

        Raises:
            OSError: the folder cannot be made.
        """
        if not self._is_shared:
            for path in _candidates(self._parent):
                with suppress(FileExistsError):
                    path.mkdir(parents=True)
                    return path, True
        self._path.mkdir(parents=True, exist_ok=True)
        claimed = self._path / _CLAIM
        until = monotonic() + _WAIT
        while yields and not claimed.exists() and monotonic() < until:
            sleep(0.05)
        try:
            claimed.touch(exist_ok=False)
        except FileExistsError:
            return self._path, False
        return self._path, True


def _candidates(parent: Path) -> Iterator[Path]:
    yield parent / FOLDER
    yield from (parent / f"{FOLDER}-{number}" for number in count(2))


def write_of_rank(record: FlightRecord, folder: Path, rank: int) -> None:
    """Write the record of one of several processes.

    Raises:
        OSError: the folder cannot be written to.
    """
    write_whole(folder / f"rank-{rank}.json", to_json(record))


def write_texts(record: FlightRecord, folder: Path) -> None:
    """Write `record.json` and `record.md`, each in one piece.

    Raises:
        OSError: the folder cannot be written to.
    """
    write_whole(folder / RECORD, to_json(record))
    write_whole(folder / TEXT, to_markdown(record, replay_command(record, folder)))


def save_beside(
    record: FlightRecord,
    folder: Path,
    training: Training,
    kept: KeptBatch | None,
    keeps: Sequence[str],
    reason: str = "the loop has not given it",
) -> FlightRecord:
    """Save what a replay needs; what cannot be saved is a note of the record.

    Args:
        record: the record.
        folder: where its files go.
        training: whose weights are saved.
        kept: the batch to save; None if it is not kept.
        keeps: what is saved: some of `batch` and `weights`.
        reason: why the batch is not kept, as a clause.
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
            notes.append(f"The batch is not kept: {reason}.")
        elif changed:
            notes.append(f"The batch is not kept: {', '.join(changed)} was changed in place since the step began.")
        else:
            save("batch", lambda: save_batch(kept.batch, folder))
        if kept is not None and (generators := kept.generators) is not None:
            save("generators", lambda: save_generators(folder, generators))
    if "weights" in keeps and any(map(is_sharded, training.model.parameters())):
        notes.append("The weights are not kept: they are sharded, and gathering them would wait for other ranks.")
    elif "weights" in keeps:
        save("weights", lambda: save_weights(training.model, folder))
        save("optimizers", lambda: save_optimizers(training.optimizers, folder))
    return replace(record, files={**record.files, **files}, notes=(*record.notes, *notes))
