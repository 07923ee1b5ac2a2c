"""Writes the record of a run into its folder, with the batch and the weights beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from lightning_hooks.engine.recording.batches import KeptBatch
from lightning_hooks.engine.recording.record_folder import RecordFolder, save_beside, write_of_rank, write_texts
from lightning_hooks.engine.rerun.training import Training
from lightning_hooks.recorder.record import FlightRecord, Verdict


class RecordWriter:
    """Writes one record, as often as more is known of its step.

    Args:
        training: whose weights are saved.
        folder: returns the folder of the record; None to write nothing.
        keeps: what is saved beside the record: some of `batch` and `weights`.

    Attributes:
        path: the folder of the record; None until it is written, and in a process beside that which writes it.
        is_written_elsewhere: whether another process writes the record.
    """

    def __init__(self, training: Training, folder: Callable[[], RecordFolder] | None, keeps: Sequence[str]) -> None:
        self.path: Path | None = None
        self.is_written_elsewhere = False
        self._training, self._folder, self._keeps = training, folder, keeps
        self._saved: KeptBatch | None = None  # whose files are beside the record

    def write(self, record: FlightRecord, kept: KeptBatch | None, reason: str = "") -> FlightRecord:
        """Write a record. The first time, claim the folder and save batch and weights beside the record.

        Later the batch is saved again if another one is known to have the fault.

        Args:
            record: the record.
            kept: the batch with the fault, or the last one of its step; None if it is not kept.
            reason: why it is not kept, as a clause.

        Returns:
            The record with the names of the files beside it.

        Raises:
            OSError: the folder cannot be made or written to.
        """
        if self._folder is None or self.is_written_elsewhere:
            return record
        if self.path is None:
            path, is_first = self._folder().claim(yields=record.verdict is Verdict.ALL_REDUCE)
            if self._training.world_size > 1:
                write_of_rank(record, path, self._training.rank)
            self.is_written_elsewhere = not is_first
            if not is_first:
                return record
            self.path = path
            # Write the record before the files beside it: an error while saving a batch must not prevent the record.
            write_texts(record, path)
            record = save_beside(record, path, self._training, kept, self._keeps, reason)
        elif kept is not None and kept is not self._saved and "batch" in self._keeps:
            # If the batch cannot be saved, the record must not name the files of the earlier one as those of the fault.
            others = {what: file for what, file in record.files.items() if what not in ("batch", "generators")}
            record = save_beside(replace(record, files=others), self.path, self._training, kept, ("batch",), reason)
        self._saved = kept
        write_texts(record, self.path)
        return record

    def stop(self) -> None:
        """Write nothing any more, because the disk is full or gone."""
        self._folder = self.path = None

    def close(self) -> None:
        """Drop the training and the folder; `path` stays."""
        vars(self).pop("_training", None)
        self._folder = self._saved = None
