"""What a capture holds: one JSON Lines file for each run of a rank, one line for each file of tensors.

A line is appended after its file got its final name, so the index never names a missing file, and what one more file
costs does not grow with the length of the capture. Only the writer that created an index appends to it, so processes that
capture into one folder at the same time do not disturb each other. A killed run can leave two things behind: an unfinished
last line, which readers ignore; and a whole file without its line, which readers still find, because every file has a copy of
its line in its own header. Run 0 has no number in its names. Folders in which all runs of a rank share one index are read too.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath
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
        run: 0 for the first run of this rank that wrote into the folder, 1 for the next one, ...
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
            RuleError: it was written by a later version of this package, or leads out of the folder of the capture.
            ValueError: it is not such a line.
        """
        data = json.loads(line)
        if not isinstance(data, dict):
            raise ValueError("not a JSON object")
        if data.get("version", 0) > VERSION:
            raise RuleError(f"the index has version {data['version']}, this lightning_hooks reads up to version {VERSION}")
        try:
            file, rank, run = data["file"], data["rank"], data["run"]
            record = cls(file, rank, run, tuple(_entry(entry, file, rank, run) for entry in data["entries"]))
            is_name = file == PureWindowsPath(file).name and file != ".."  # a path of POSIX is one of Windows too
        except (KeyError, TypeError) as error:
            raise ValueError(f"no such line: {error!r}") from error
        if not is_name:
            entry = f"the entry {record.entries[0].name!r}" if record.entries else "it"
            raise RuleError(f"{entry} leads to {file!r}; a capture reads only files in its own folder")
        return record


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


def read_folder(folder: Path) -> list[FileRecord]:
    """The records of all files of tensors in a folder, by rank and run.

    Raises:
        RuleError: an index is damaged.
    """
    # List the files before reading the indexes: a file that a live writer adds in between is then in the index, not lost.
    names = sorted(path.name for path in folder.iterdir() if run_of(path.name) is not None)
    records = [record for index in sorted(folder.glob(PATTERN)) for record in read_index(index)[0]]
    indexed = {record.file for record in records}
    records += [record for name in names if name not in indexed for record in _from_header(folder / name)]
    return sorted(records, key=lambda record: (record.rank, record.run))


def _from_header(path: Path) -> Iterator[FileRecord]:
    """The copy of its line that a file of tensors holds; nothing for a file that is incomplete or not from a capture."""
    library = need_safetensors()
    with contextlib.suppress(library.SafetensorError, OSError, ValueError, KeyError, TypeError):
        with library.safe_open(path, framework="pt") as opened:
            record = FileRecord.from_line(opened.metadata()["lightning_hooks"])
        if record.file == path.name:
            yield record


class IndexWriter:
    """The index of one run of a rank. The first line creates it, under a number that no other run of this rank has.

    Attributes:
        run: the number of the run, known after `claim`.

    Raises:
        OSError: the folder cannot be read.
        RuleError: an index in the folder is damaged.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder, self._rank = folder, rank
        self._is_claimed = False
        recorded = [record.run for record in read_folder(folder) if record.rank == rank]
        named = [run for path in folder.iterdir() if (run := run_of(path.name, rank)) is not None]
        self.run = max(recorded + named, default=-1) + 1

    @property
    def path(self) -> Path:
        """The file of the index."""
        return self._folder / f"index-{rank_and_run(self._rank, self.run)}.jsonl"

    def claim(self) -> None:
        """Create the index under the next free number, so that no other writer uses this number."""
        while not self._is_claimed:
            try:
                os.close(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
                self._is_claimed = True
            except FileExistsError:
                self.run += 1

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


def rank_and_run(rank: int, run: int) -> str:
    """The part of the names of files that tells writers apart.

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
    found = re.fullmatch(rf"\w+-rank{number}(?:-run(\d+))?-\d+\.safetensors", file)
    return int(found[1] or 0) if found else None


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
