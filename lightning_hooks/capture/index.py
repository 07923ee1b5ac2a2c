"""What a capture holds: one JSON Lines file for each rank, one line for each file of tensors.

A line is appended after its file got its final name, so the index never names a missing file, and what one more file
costs does not grow with the length of the capture. A killed run can leave two things behind: an unfinished last line, which
readers ignore and the next writer cuts off; and a whole file without its line, which the next writer adds to the index, because
every file has a copy of its line in its own header.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from lightning_hooks.errors import RuleError, UnsupportedError

VERSION: Final = 1
PATTERN: Final = "index-rank*.jsonl"


@dataclass(frozen=True, slots=True)
class Entry:
    """One captured tensor: where it came from and where it lies.

    Args:
        name: of the module, dotted, or any name that the writer was given.
        call: 0 for the first tensor of this name in the batch, 1 for the second, ...
        step: of training, as the charts count it.
        stage: `train`, `validate`, `test` or `predict`.
        rank: of the process.
        run: 0 for the run that began the capture, 1 for the next one into the same folder, ...
        dataloader_idx: of the batch; 0 where there is one loader.
        batch_idx: of the batch in its epoch.
        shape: as captured.
        dtype: as stored, `float16` and the like.
        sample_indices: which samples of the data set the batch held, or None where the writer was not told.
        bytes: of the tensor's elements.
        file: name of the safetensors file in the capture's folder.
        key: of the tensor in that file.
    """

    name: str
    call: int
    step: int
    stage: str
    rank: int
    run: int
    dataloader_idx: int
    batch_idx: int
    shape: tuple[int, ...]
    dtype: str
    sample_indices: tuple[int, ...] | None
    bytes: int
    file: str
    key: str

    @property
    def order(self) -> tuple[int, ...]:
        """Entries are sorted by step, then rank, then batch, then call; of the same batch in two runs the older is first."""
        return (self.step, self.rank, self.dataloader_idx, self.batch_idx, self.call, self.run)


@dataclass(frozen=True, slots=True)
class FileRecord:
    """One file of tensors: one line of the index.

    Example:
        >>> record = FileRecord("predict-rank0-000000.safetensors", 0, 0, ())
        >>> FileRecord.from_line(record.to_line()) == record
        True
    """

    file: str
    rank: int
    run: int
    entries: tuple[Entry, ...]

    def to_line(self) -> str:
        """The record as one line of JSON, without the line end."""
        shared = {"file", "rank", "run"}
        entries = [{key: getattr(entry, key) for key in Entry.__slots__ if key not in shared} for entry in self.entries]
        line = {"version": VERSION, "file": self.file, "rank": self.rank, "run": self.run, "entries": entries}
        return json.dumps(line, separators=(",", ":"))

    @classmethod
    def from_line(cls, line: str | bytes) -> FileRecord:
        """The record of a line.

        Raises:
            RuleError: it was written by a later version of this package.
            ValueError: it is not such a line.
        """
        data = json.loads(line)
        if not isinstance(data, dict):
            raise ValueError("not a JSON object")
        if data.get("version", 0) > VERSION:
            raise RuleError(f"the index has version {data['version']}, this lightning_hooks reads up to version {VERSION}")
        try:
            file, rank, run = data["file"], data["rank"], data["run"]
            return cls(file, rank, run, tuple(_entry(entry, file, rank, run) for entry in data["entries"]))
        except (KeyError, TypeError) as error:
            raise ValueError(f"no such line: {error!r}") from error


def _entry(data: Mapping[str, Any], file: str, rank: int, run: int) -> Entry:
    known = {key: data[key] for key in Entry.__slots__ if key in data}
    samples = data["sample_indices"]
    known |= {"shape": tuple(data["shape"]), "sample_indices": None if samples is None else tuple(samples)}
    return Entry(file=file, rank=rank, run=run, **known)


def read_index(path: Path) -> tuple[list[FileRecord], int]:
    """The records of an index file, and how many of its bytes they take.

    Raises:
        RuleError: a line other than the last cannot be read.
    """
    records: list[FileRecord] = []
    content = path.read_bytes()
    end = 0
    for number, line in enumerate(content.splitlines(keepends=True), start=1):
        try:
            if not line.endswith(b"\n"):
                break  # the writer was killed here
            records.append(FileRecord.from_line(line))
        except RuleError as error:
            raise RuleError(f"{path}, line {number}: {error}") from None
        except ValueError as error:
            if end + len(line) == len(content):
                break  # a power failure may leave a line of zeros
            raise RuleError(f"{path}, line {number} is not a line of a capture's index: {error}") from error
        end += len(line)
    return records, end


class IndexWriter:
    """The index of one rank, open for appending; lines of earlier runs stay.

    Raises:
        OSError: it cannot be read, or not be repaired after a killed run.
        RuleError: the file is not an index of a capture.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self.path = folder / f"index-rank{rank}.jsonl"
        self.files: set[str] = set()
        self.run = 0
        if self.path.exists():
            records, length = read_index(self.path)
            self.files = {record.file for record in records}
            self.run = max((record.run for record in records), default=-1) + 1
            if length < self.path.stat().st_size:
                os.truncate(self.path, length)

    def append(self, record: FileRecord) -> None:
        """Add a line and wait until it is on the disk; after an `OSError` the index is unchanged."""
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            before = os.fstat(descriptor).st_size
            try:
                rest = memoryview(f"{record.to_line()}\n".encode())
                while rest:  # a full disk may write a part before it raises
                    rest = rest[os.write(descriptor, rest) :]
                os.fsync(descriptor)
            except OSError:
                os.ftruncate(descriptor, before)
                raise
        finally:
            os.close(descriptor)
        self.files.add(record.file)


def number_of(file: str, rank: int) -> int | None:
    """The number in the name of a file of tensors of this rank; None for any other file.

    Example:
        >>> number_of("train-rank0-000012.safetensors", 0), number_of("train-rank1-000012.safetensors", 0)
        (12, None)
    """
    found = re.fullmatch(rf"\w+-rank{rank}-(\d+)\.safetensors", file)
    return int(found[1]) if found else None


def need_safetensors() -> ModuleType:
    """The `safetensors` package with its `torch` part loaded.

    Raises:
        UnsupportedError: where it is not installed; the message names the extra.
    """
    try:
        import safetensors
        import safetensors.torch
    except ImportError as error:
        raise UnsupportedError(
            "capturing tensors needs safetensors, which is not installed: pip install 'lightning-hooks[capture]'"
        ) from error
    return safetensors
