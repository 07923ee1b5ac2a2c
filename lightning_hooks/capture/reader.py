"""Reading a capture from disk: the index gives the list of entries, and each tensor is read on access."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, overload

import torch
from torch import Tensor

from lightning_hooks.capture.index import PATTERN, Entry, need_safetensors, read_folder
from lightning_hooks.errors import RuleError, did_you_mean
from lightning_hooks.rules.fields import check_path
from lightning_hooks.untrusted import MissingError, open_regular, path_inside

# Keep this many files open, because parsing the header of a file takes longer than reading a small tensor.
_OPEN_FILES: Final = 8


class _TensorFiles:
    """Reads tensors from the files of a capture, and keeps the most recently used files open."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._library = need_safetensors()
        self._open: OrderedDict[str, tuple[ExitStack, Any]] = OrderedDict()

    def read(self, entry: Entry) -> Tensor:
        """One tensor, on the CPU.

        Raises:
            RuleError: the file is missing or damaged.
        """
        try:
            tensor: Tensor = self._handle(entry.file).get_tensor(entry.key)
        except (MissingError, FileNotFoundError):
            raise RuleError(f"{entry.file}, which holds {entry.name!r}, is gone from {str(self.folder)!r}") from None
        except (self._library.SafetensorError, OSError) as error:
            raise RuleError(f"{self.folder / entry.file} is damaged: {error}") from error
        dtype = getattr(torch, entry.dtype)
        if dtype.is_complex and tensor.is_floating_point() and tensor.shape[-1:] == (2,):
            tensor = torch.view_as_complex(tensor)
        if (tensor.dtype, tuple(tensor.shape)) != (dtype, entry.shape):
            stored, indexed = f"{tensor.dtype} {list(tensor.shape)}", f"{dtype} {list(entry.shape)}"
            raise RuleError(
                f"{self.folder / entry.file} is damaged: {entry.name!r} is {stored} there and {indexed} in the index"
            )
        return tensor

    def _handle(self, file: str) -> Any:
        if file not in self._open:
            path = path_inside(self.folder, file)
            # safetensors would wait for a writer if the file were a named pipe.
            open_regular(path).close()
            stack = ExitStack()
            self._open[file] = (stack, stack.enter_context(self._library.safe_open(path, framework="pt")))
            if len(self._open) > _OPEN_FILES:
                self._open.popitem(last=False)[1][0].close()
        self._open.move_to_end(file)
        return self._open[file][1]

    def __reduce__(self) -> tuple[type[_TensorFiles], tuple[Path]]:
        """Pickle only the folder, not the open files, so that a capture can be sent to the workers of a DataLoader."""
        return (_TensorFiles, (self.folder,))


class Entries(Sequence[Tensor]):
    """The captured tensors of one name, in order of (step, rank, batch, call); each is read on access.

    `entries[3]` reads one tensor. `entries[2:5]` is a shorter sequence and reads nothing. `infos` describes each entry.

    Args:
        name: the name of the entries.
        infos: the index records of the entries, in order.
        files: the files to read from.
    """

    def __init__(self, name: str, infos: Sequence[Entry], files: _TensorFiles) -> None:
        self.name = name
        self.infos = tuple(infos)
        self._files = files

    def __len__(self) -> int:
        """The number of tensors."""
        return len(self.infos)

    @overload
    def __getitem__(self, index: int) -> Tensor: ...
    @overload
    def __getitem__(self, index: slice) -> Entries: ...
    def __getitem__(self, index: int | slice) -> Tensor | Entries:
        """One tensor, read now, on the CPU; or for a slice a shorter sequence."""
        if isinstance(index, slice):
            return Entries(self.name, self.infos[index], self._files)
        return self._files.read(self.infos[index])

    def __repr__(self) -> str:
        """Name, number and size of the entries."""
        return f"<Entries {self.name!r}: {len(self)} tensors, {sum(info.bytes for info in self.infos)} bytes>"

    @property
    def steps(self) -> tuple[int, ...]:
        """The step of each entry."""
        return tuple(info.step for info in self.infos)

    @property
    def stages(self) -> tuple[str, ...]:
        """The stage of each entry."""
        return tuple(info.stage for info in self.infos)

    @property
    def batch_indices(self) -> tuple[int, ...]:
        """The batch index of each entry."""
        return tuple(info.batch_idx for info in self.infos)

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shape of each entry."""
        return tuple(info.shape for info in self.infos)

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        """The dtype of each entry."""
        return tuple(getattr(torch, info.dtype) for info in self.infos)

    @property
    def sample_indices(self) -> tuple[tuple[int, ...] | None, ...]:
        """The sample indices of each entry, None if unknown; concatenated they are the rows of `cat`."""
        return tuple(info.sample_indices for info in self.infos)

    def where(self, **conditions: int | str) -> Entries:
        """The entries whose fields have these values; reads no tensor.

        Args:
            conditions: a value for any field of `Entry`: `stage`, `rank`, `run`, `call`, `step`, `batch_idx`, ...

        Raises:
            RuleError: an unknown field.
        """
        for field in conditions:
            if field not in Entry.__slots__:
                raise RuleError(f"Entries.where: no field {field!r}{did_you_mean(field, Entry.__slots__)}")
        selected = [info for info in self.infos if all(getattr(info, field) == value for field, value in conditions.items())]
        return Entries(self.name, selected, self._files)

    def cat(self) -> Tensor:
        """All entries concatenated along the batch dimension [N1 + N2 + ..., ...]; entries without dimensions are stacked.

        A batch that was captured twice, by a run and by a second run that resumed from its checkpoint, appears twice: select
        one of the runs with `where(run=...)`.

        Raises:
            RuleError: no entries, several stages, or incompatible shapes or dtypes.
        """
        if not self.infos:
            raise RuleError(f"{self.name!r}: no entry to concatenate")
        stages = list(dict.fromkeys(self.stages))
        if len(stages) > 1:
            raise RuleError(
                f"{self.name!r} has entries of {' and '.join(stages)}: select one with where(stage={stages[0]!r}) before cat()"
            )

        kinds = {(info.shape[1:], info.dtype): info.shape for info in self.infos}
        if len(kinds) > 1:
            listed = ", ".join(f"{list(shape)} {dtype}" for (_, dtype), shape in list(kinds.items())[:5])
            raise RuleError(f"{self.name!r}: entries of different shapes or dtypes cannot be concatenated: {listed}")
        return torch.cat([tensor.reshape(1) if tensor.dim() == 0 else tensor for tensor in self])


class Capture(Mapping[str, Entries]):
    """The capture of a run, all ranks together: `capture["encoder.0"]` is the sequence of its tensors.

    Args:
        folder: the folder that contains the capture.
        infos: the index records of all entries.
    """

    def __init__(self, folder: Path, *, infos: Sequence[Entry]) -> None:
        self.folder = folder
        files = _TensorFiles(folder)
        by_name: dict[str, list[Entry]] = {}
        for info in infos:
            by_name.setdefault(info.name, []).append(info)
        self._entries = {
            name: Entries(name, sorted(group, key=lambda info: info.order), files) for name, group in by_name.items()
        }

    def __getitem__(self, name: str) -> Entries:
        """The tensors of one name.

        Raises:
            RuleError: no such name.
        """
        if name not in self._entries:
            raise RuleError(f"nothing captured under {name!r} in {str(self.folder)!r}{did_you_mean(name, self.names)}")
        return self._entries[name]

    def __contains__(self, name: object) -> bool:
        """Whether something was captured under this name."""
        return name in self._entries

    def get(self, name: str, default: Any = None) -> Any:
        """The tensors of one name, or `default`."""
        return self._entries.get(name, default)

    def __iter__(self) -> Iterator[str]:
        """The names."""
        return iter(self._entries)

    def __len__(self) -> int:
        """The number of names."""
        return len(self._entries)

    def __repr__(self) -> str:
        """The folder and the size."""
        number, size = len(self._infos()), sum(info.bytes for info in self._infos())
        return f"<Capture {str(self.folder)!r}: {len(self)} names, {number} tensors, {size} bytes>"

    @property
    def names(self) -> tuple[str, ...]:
        """The names, in the order in which they were first captured."""
        return tuple(self._entries)

    @property
    def steps(self) -> tuple[int, ...]:
        """The captured steps, ascending."""
        return tuple(sorted({info.step for info in self._infos()}))

    @property
    def stages(self) -> tuple[str, ...]:
        """The captured stages."""
        return tuple(dict.fromkeys(info.stage for info in self._infos()))

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks with captures, ascending."""
        return tuple(sorted({info.rank for info in self._infos()}))

    @property
    def shapes(self) -> dict[str, tuple[tuple[int, ...], ...]]:
        """The distinct shapes of each name."""
        return {name: tuple(dict.fromkeys(entries.shapes)) for name, entries in self.items()}

    @property
    def sample_indices(self) -> tuple[int, ...]:
        """The captured sample indices, ascending; empty if unknown."""
        return tuple(sorted({index for info in self._infos() for index in info.sample_indices or ()}))

    def _infos(self) -> list[Entry]:
        return [info for entries in self._entries.values() for info in entries.infos]


def load_capture(path: str | os.PathLike[str]) -> Capture:
    """Open the folder of an `ActivationCapture`; during a run, the capture has the files that are complete so far.

    Only the indexes are read; tensors are read on access.

    Args:
        path: the folder of the capture, by default `captures` in the logger's folder.

    Raises:
        RuleError: the folder does not exist, contains no capture, or has an index that is damaged or names files elsewhere.
        UnsupportedError: safetensors is not installed.

    Example:
        >>> import tempfile
        >>> from lightning_hooks.capture import CaptureWriter
        >>> folder = tempfile.mkdtemp()
        >>> with CaptureWriter(folder) as writer:
        ...     writer.add("encoder", torch.ones(4, 8), step=0, stage="predict", batch_idx=0)
        >>> capture = load_capture(folder)
        >>> capture.names, capture["encoder"].cat().shape
        (('encoder',), torch.Size([4, 8]))
    """
    check_path("path", path)
    folder = Path(path)
    if not folder.is_dir():
        raise RuleError(f"there is no folder {str(path)!r}")
    records = read_folder(folder)
    if not records and not any(folder.glob(PATTERN)):
        nested = sorted({str(index.parent) for index in folder.rglob(PATTERN)})
        hint = f"; there are captures in {', '.join(nested[:5])}" if nested else ""
        raise RuleError(f"no capture in {str(path)!r}: no {PATTERN} in it{hint}")
    return Capture(folder, infos=[entry for record in records for entry in record.entries])
