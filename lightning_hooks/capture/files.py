"""The files of tensors that one rank writes, each with its line in the index."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from lightning_hooks.capture.index import Entry, FileRecord, IndexWriter, need_safetensors, number_of


class Item(NamedTuple):
    """A collected tensor that is not on disk yet; the other fields are those of its `Entry`."""

    tensor: Tensor
    name: str
    call: int
    step: int
    stage: str
    dataloader_idx: int
    batch_idx: int
    sample_indices: tuple[int, ...] | None

    def stored(self) -> Tensor:
        """What the file holds: complex numbers as pairs [..., 2] of real ones, since it has no dtype for all of them."""
        return torch.view_as_real(self.tensor) if self.tensor.is_complex() else self.tensor


class RankFiles:
    """The files of one rank. What a killed run has left is put in order first.

    Attributes:
        size: of all its files in bytes, those of earlier runs included.

    Raises:
        OSError: the folder cannot be used.
        RuleError: the index is none of a capture.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self._library = need_safetensors()
        self._folder, self._rank = folder, rank
        self._temporary = folder / f".rank{rank}.tmp"
        folder.mkdir(parents=True, exist_ok=True)
        self.remove_unfinished()
        self._index = IndexWriter(folder, rank)
        numbers = {path: number_of(path.name, rank) for path in folder.iterdir()}
        found = {path: number for path, number in numbers.items() if number is not None}
        self._number = max(found.values(), default=-1) + 1
        for path in sorted(found):
            if path.name not in self._index.files:
                self._adopt(path)
        self.size = sum(path.stat().st_size for path in found)

    def write(self, stage: str, items: Sequence[Item], max_bytes: int | None) -> str:
        """Write the next file, and then its line in the index.

        Args:
            stage: of the items.
            items: what it holds.
            max_bytes: limit for `size`.

        Returns:
            The reason why it is not there; empty where it is.
        """
        file = f"{stage}-rank{self._rank}-{self._number:06}.safetensors"
        temporary = self._temporary / file
        tensors = {f"{position}:{item.name}": item.stored() for position, item in enumerate(items)}
        entries = (self._entry(item, file, key) for key, item in zip(tensors, items, strict=True))
        record = FileRecord(file, self._rank, self._index.run, tuple(entries))
        try:
            self._temporary.mkdir(exist_ok=True)
            temporary.touch()
            allowed = temporary.stat().st_mode  # by the umask; safetensors writes for the owner alone
            self._library.torch.save_file(tensors, temporary, metadata={"lightning_hooks": record.to_line()})
            temporary.chmod(allowed)
            size = temporary.stat().st_size
            if max_bytes is not None and self.size + size > max_bytes:
                return f"the next file, {size} bytes, would exceed max_bytes={max_bytes}"
            _to_disk(temporary)
            os.rename(temporary, self._folder / file)
            self._number += 1
            self.size += size
            _to_disk(self._folder)
            self._index.append(record)
        except (OSError, self._library.SafetensorError) as error:
            return f"{file} could not be written: {error}"
        return ""

    def remove_unfinished(self) -> None:
        """Remove what was written in part."""
        shutil.rmtree(self._temporary, ignore_errors=True)

    def _entry(self, item: Item, file: str, key: str) -> Entry:
        known = item._asdict()
        tensor = known.pop("tensor")
        return Entry(
            **known,
            rank=self._rank,
            run=self._index.run,
            shape=tuple(tensor.shape),
            dtype=str(tensor.dtype).removeprefix("torch."),
            bytes=tensor.nbytes,
            file=file,
            key=key,
        )

    def _adopt(self, path: Path) -> None:
        """Add to the index a complete file whose line is missing because the run was killed."""
        # An incomplete file, or one of other origin, stays in the folder and out of the index.
        with contextlib.suppress(self._library.SafetensorError, ValueError, KeyError, TypeError):
            with self._library.safe_open(path, framework="pt") as opened:
                record = FileRecord.from_line(opened.metadata()["lightning_hooks"])
            if record.file == path.name:
                self._index.append(record)
                self._index.run = max(self._index.run, record.run + 1)


def _to_disk(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
