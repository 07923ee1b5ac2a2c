"""Writing the files of captured tensors of one rank, each with a line in the index."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from lightning_hooks.capture.index import Entry, FileRecord, IndexWriter, need_safetensors, rank_and_run, run_of
from lightning_hooks.capture.temporary import TemporaryFolder, remove_leftovers
from lightning_hooks.whole_files import create_unfinished, flush


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
        """The tensor as stored in the file: complex numbers as real pairs [..., 2], since safetensors lacks complex128."""
        return torch.view_as_real(self.tensor) if self.tensor.is_complex() else self.tensor


class RankFiles:
    """The files that one run of a rank writes. Unfinished files of killed runs are removed first.

    Attributes:
        size: the bytes of all files of this rank in the folder, including those of earlier runs.

    Raises:
        OSError: the folder cannot be used.
        RuleError: an index in the folder is damaged.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self._library = need_safetensors()
        self._folder, self._rank = folder, rank
        self._temporary: TemporaryFolder | None = None
        self._number = 0
        folder.mkdir(parents=True, exist_ok=True)
        remove_leftovers(folder, rank)
        self._index = IndexWriter(folder, rank)
        self.size = sum(path.stat().st_size for path in folder.iterdir() if run_of(path.name, rank) is not None)

    def write(self, stage: str, items: Sequence[Item], max_bytes: int | None) -> str:
        """Write the next file, and after it its line in the index.

        Args:
            stage: the stage of all items.
            items: the tensors of the file.
            max_bytes: the limit of `size`; None for no limit.

        Returns:
            The reason why the file was not written; empty if the file was written.
        """
        tensors = {f"{position}:{item.name}": item.stored() for position, item in enumerate(items)}
        file = ""
        try:
            folder = self._claim_folder()
            file = f"{stage}-{rank_and_run(self._rank, self._index.run)}-{self._number:06}.safetensors"
            entries = (self._entry(item, file, key) for key, item in zip(tensors, items, strict=True))
            record = FileRecord(file, self._rank, self._index.run, tuple(entries))
            temporary = create_unfinished(folder / file)
            # Restore the mode of the umask after writing: safetensors lets only the owner read the file.
            mode = temporary.stat().st_mode
            self._library.torch.save_file(tensors, temporary, metadata={"lightning_hooks": record.to_line()})
            size = temporary.stat().st_size
            if max_bytes is not None and self.size + size > max_bytes:
                return f"the next file, {size} bytes, would exceed max_bytes={max_bytes}"
            flush(temporary, mode)
            os.rename(temporary, self._folder / file)
            self._number += 1
            self.size += size
            _flush_names(self._folder)
            self._index.append(record)
        except (OSError, self._library.SafetensorError) as error:
            return f"{file or 'the first file'} could not be written: {error}"
        return ""

    def _claim_folder(self) -> Path:
        """Claim a run number for this writer, create its temporary folder, and return the path of the folder."""
        if self._temporary is None:
            self._index.claim()
            self._temporary = TemporaryFolder(self._folder / f".{rank_and_run(self._rank, self._index.run)}.tmp")
        self._temporary.create()
        return self._temporary.path

    def remove_unfinished(self) -> None:
        """Remove the temporary folder with all files that were not completed."""
        if self._temporary is not None:
            self._temporary.remove()

    def _entry(self, item: Item, file: str, key: str) -> Entry:
        fields = item._asdict()
        tensor = fields.pop("tensor")
        return Entry(
            **fields,
            rank=self._rank,
            run=self._index.run,
            shape=tuple(tensor.shape),
            dtype=str(tensor.dtype).removeprefix("torch."),
            bytes=tensor.nbytes,
            file=file,
            key=key,
        )


def _flush_names(folder: Path) -> None:
    """Wait until the list of names in a folder is on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
