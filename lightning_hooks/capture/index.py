"""The index of a capture: a JSON Lines file for each run of a rank, with one line for each file of tensors.

A line is appended after its file got its final name, so the index never names a missing file, and the cost of a line does not
grow with the length of the capture. Only the writer that created an index appends to it, so processes that capture into one
folder at the same time do not disturb each other. A killed run can leave two things behind: an unfinished last line, which
readers ignore; and a complete file without its line, which readers still find, because every file has a copy of its line in
its own header. The names of files of run 0 do not contain the number of the run. Folders of earlier versions, in which all
runs of a rank share one index, are read too.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath
from types import ModuleType
from typing import Final

import torch

from lightning_hooks.codec import decode, encode
from lightning_hooks.errors import RuleError, UnsupportedError, shown
from lightning_hooks.untrusted import UnreadableError, open_regular, parse_json, path_inside, read_bytes

VERSION: Final = 1
PATTERN: Final = "index-rank*.jsonl"
_MAX_INDEX: Final = 2_000_000_000  # bytes
_SHARED: Final = ("file", "rank", "run")
"""The fields of an `Entry` that its line has once."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One captured tensor: its origin in the run, and its location on disk.

    Args:
        name: the dotted name of the module, or any other name that was given to the writer.
        call: 0 for the first tensor of this name in the batch, 1 for the second, ...
        step: the training step, as the charts count it.
        stage: `train`, `validate`, `test` or `predict`.
        rank: the rank of the process.
        run: 0 for the first run of this rank that wrote into the folder, 1 for the next run, ...
        dataloader_idx: the index of the batch's loader; 0 if the stage has one loader.
        batch_idx: the index of the batch in its epoch.
        shape: the shape of the captured tensor.
        dtype: the dtype in the file, such as `float16`.
        sample_indices: the indices of the batch's samples in the data set, or None if the writer did not receive them.
        bytes: the size of the tensor's elements.
        file: the name of the safetensors file in the capture's folder.
        key: the key of the tensor in the file.
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

    def __post_init__(self) -> None:
        if not isinstance(getattr(torch, self.dtype, None), torch.dtype):
            raise ValueError(f"dtype must be the name of a dtype, got {shown(self.dtype)}")

    @property
    def order(self) -> tuple[int, ...]:
        """The sort key: step, rank, batch, call; if two runs captured the same batch, the earlier run comes first."""
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
        line = {"version": VERSION, **encode(self)}
        for entry in line["entries"]:
            for key in _SHARED:
                del entry[key]
        return json.dumps(line, separators=(",", ":"))

    @classmethod
    def from_line(cls, line: str | bytes) -> FileRecord:
        """Parse one line of an index.

        Raises:
            RuleError: a later version of this package wrote the line, or its file is outside the folder of the capture.
            ValueError: the line is not one that `to_line` returns.
        """
        try:
            data = parse_json(line)
        except UnreadableError as error:
            raise ValueError(str(error)) from error
        if not isinstance(data, dict):
            raise ValueError("not a JSON object")
        version = data.get("version", 0)
        if type(version) is not int:
            raise ValueError(f"version must be an integer, got {shown(version)}")
        if version > VERSION:
            raise RuleError(f"the index has version {version}, this lightning_hooks reads up to version {VERSION}")
        shared = {key: data[key] for key in _SHARED if key in data}
        entries = data.get("entries")
        if isinstance(entries, list):
            data["entries"] = [{**entry, **shared} if isinstance(entry, dict) else entry for entry in entries]
        try:
            record = decode(cls, data, "line")
        except RuleError as error:
            raise ValueError(str(error)) from error
        file = record.file
        # Refuse a name with a folder, as Linux or Windows writes it: PureWindowsPath splits at slashes and at backslashes.
        if file != PureWindowsPath(file).name or file == "..":
            entry = f"the entry {record.entries[0].name!r}" if record.entries else "the line"
            raise RuleError(f"{entry} leads to {file!r}; a capture reads only files in its own folder")
        return record


def read_index(path: Path) -> tuple[list[FileRecord], int]:
    """The records of an index file, and the number of its bytes that belong to complete lines.

    Raises:
        RuleError: a line other than the last cannot be read.
    """
    records: list[FileRecord] = []
    content = read_bytes(path, _MAX_INDEX)
    end = 0
    for number, line in enumerate(content.splitlines(keepends=True), start=1):
        try:
            if not line.endswith(b"\n"):
                # The line is incomplete: its writer was killed while it wrote the line.
                break
            records.append(FileRecord.from_line(line))
        except RuleError as error:
            raise RuleError(f"{path}, line {number}: {error}") from None
        except ValueError as error:
            if end + len(line) == len(content):
                # Ignore the last line if it cannot be read: a power failure may leave zeros there.
                break
            raise RuleError(f"{path}, line {number} is not a line of a capture's index: {error}") from error
        end += len(line)
    return records, end


def read_folder(folder: Path) -> list[FileRecord]:
    """The records of all files of tensors in a folder, sorted by rank and run.

    Raises:
        RuleError: an index is damaged.
    """
    # List the files before reading the indexes: a file that a live writer adds in between is then in the index.
    names = sorted(path.name for path in folder.iterdir() if run_of(path.name) is not None)
    records = [record for index in sorted(folder.glob(PATTERN)) for record in read_index(index)[0]]
    indexed = {record.file for record in records}
    records += [record for name in names if name not in indexed for record in _from_header(folder / name)]
    return sorted(records, key=lambda record: (record.rank, record.run))


def _from_header(path: Path) -> Iterator[FileRecord]:
    """The record in the header of a file of tensors; nothing if the file is incomplete or not from a capture."""
    library = need_safetensors()
    with contextlib.suppress(library.SafetensorError, OSError, ValueError, KeyError, TypeError):
        open_regular(path_inside(path.parent, path.name)).close()
        with library.safe_open(path, framework="pt") as opened:
            record = FileRecord.from_line(opened.metadata()["lightning_hooks"])
        if record.file == path.name:
            yield record


class IndexWriter:
    """The index of one run of a rank. `claim` creates the file, with a run number that no other run of this rank has.

    Attributes:
        run: the number of the run; final after `claim`.

    Raises:
        OSError: the folder cannot be read.
        RuleError: an index in the folder is damaged.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder, self._rank = folder, rank
        self._is_claimed = False
        recorded_runs = [record.run for record in read_folder(folder) if record.rank == rank]
        named_runs = [run for path in folder.iterdir() if (run := run_of(path.name, rank)) is not None]
        self.run = max(recorded_runs + named_runs, default=-1) + 1

    @property
    def path(self) -> Path:
        """The path of the index."""
        return self._folder / f"index-{rank_and_run(self._rank, self.run)}.jsonl"

    def claim(self) -> None:
        """Create the index under the next free run number, so that no other writer uses this number."""
        while not self._is_claimed:
            try:
                os.close(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
                self._is_claimed = True
            except FileExistsError:
                self.run += 1

    def append(self, record: FileRecord) -> None:
        """Append the line of a record and wait until it is on the disk; if an `OSError` is raised, the index is unchanged."""
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            before = os.fstat(descriptor).st_size
            try:
                rest = memoryview(f"{record.to_line()}\n".encode())
                # On a full disk, write() may write only a part of the line, and the next call raises. Then the part is removed
                # below.
                while rest:
                    rest = rest[os.write(descriptor, rest) :]
                os.fsync(descriptor)
            except OSError:
                os.ftruncate(descriptor, before)
                raise
        finally:
            os.close(descriptor)


def rank_and_run(rank: int, run: int) -> str:
    """The part of a file name that identifies the writer: the rank, and the run unless it is 0.

    Example:
        >>> rank_and_run(2, 0), rank_and_run(2, 3)
        ('rank2', 'rank2-run3')
    """
    return f"rank{rank}-run{run}" if run else f"rank{rank}"


def run_of(file: str, rank: int | None = None) -> int | None:
    """The run in the name of a file of tensors, of any rank by default; None for any other file.

    Example:
        >>> run_of("train-rank0-run4-000012.safetensors", 0), run_of("train-rank1-000012.safetensors", 0)
        (4, None)
    """
    number = r"\d+" if rank is None else rank
    match = re.fullmatch(rf"\w+-rank{number}(?:-run(\d+))?-\d+\.safetensors", file)
    return int(match[1] or 0) if match else None


def need_safetensors() -> ModuleType:
    """The `safetensors` package with its `torch` part loaded.

    Raises:
        UnsupportedError: safetensors is not installed; the message names the extra.
    """
    try:
        import safetensors
        import safetensors.torch
    except ImportError as error:
        raise UnsupportedError(
            "capturing tensors needs safetensors, which is not installed: pip install 'lightning-hooks[capture]'"
        ) from error
    return safetensors
