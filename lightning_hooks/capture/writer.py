"""Writing captured tensors to disk: one complete file for every few batches; a failing disk never raises in training."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import torch
from torch import Tensor

from lightning_hooks.capture.files import Item, RankFiles
from lightning_hooks.errors import RuleError
from lightning_hooks.rules.fields import as_count, check_local

FLOATS: Final = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
# fmt: off
STORED: Final = frozenset({
    *FLOATS, torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64, torch.complex128, torch.bool,
    torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64,
})
# fmt: on


def can_be_stored(tensor: Tensor) -> bool:
    """Whether a tensor is of a kind that a file can hold: not sparse, nested or quantized."""
    is_strided = tensor.layout == torch.strided and not tensor.is_meta and not tensor.is_nested
    return is_strided and tensor.dtype in STORED


class CaptureWriter:
    """Collects tensors and writes them to files, one for every `batches_per_file` batches of a stage, with an index.

    A file `<stage>-rank<rank>-<number>.safetensors` is written in a temporary folder, `.rank<rank>.tmp`, flushed to the disk,
    renamed into `folder`, and only then named in `index-rank<rank>.jsonl`: a run killed at any moment leaves only complete
    files and an index without missing ones, and loses at most the batches it still held in memory. The next
    writer removes incomplete files when it starts. A second run into the same folder destroys nothing: its entries have the
    next `run` number of this rank, which is also in the names of its files (`<stage>-rank<rank>-run1-<number>.safetensors`).
    The number is taken when the first file is written, so several processes may capture into one folder at the same time, each
    as a run of its own. With several such runs of several ranks each, the ranks of one run may get different numbers.

    A full disk, any other error of the file system, or the end of `max_bytes` stops the capture with one message and nothing
    else: `add` and `end_batch` then do nothing, and `stopped` says why (None while it runs, `"closed"` after
    `close`). Tensors of a kind that cannot be stored (sparse, nested, quantized) are skipped with one message for each name.

    Args:
        folder: the folder to write to; created if missing.
        rank: the rank of this process, 0 by default; each rank writes its own files.
        batches_per_file: the maximum number of batches held in memory, for each stage; 32 by default.
        dtype: the dtype that floating-point tensors are cast to, such as `"float16"` or `torch.float16`; values beyond its
            range become infinite. None, the default, for no cast. Integers, booleans, float8 and complex numbers are not cast.
        max_bytes: the maximum size of all files of this rank in the folder, including earlier runs; no limit by default.
        on_problem: called with a sentence if a tensor is not captured; a Python warning by default.

    Raises:
        RuleError: an option is invalid, or the folder cannot be used; if the folder fails later, that is only reported.
        UnsupportedError: safetensors is not installed.

    Example:
        >>> import tempfile
        >>> with CaptureWriter(tempfile.mkdtemp(), batches_per_file=2) as writer:
        ...     for batch_idx in range(3):
        ...         writer.add("encoder", torch.ones(4, 8), step=0, stage="predict", batch_idx=batch_idx)
        ...         writer.end_batch()
        >>> sorted(path.name for path in writer.folder.iterdir())[1:]
        ['predict-rank0-000000.safetensors', 'predict-rank0-000001.safetensors']
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        rank: int = 0,
        batches_per_file: int = 32,
        dtype: torch.dtype | str | None = None,
        max_bytes: int | None = None,
        on_problem: Callable[[str], None] | None = None,
    ) -> None:
        as_count("CaptureWriter.rank", rank)
        self.check("CaptureWriter.", batches_per_file=batches_per_file, dtype=dtype, max_bytes=max_bytes)
        check_local("CaptureWriter.folder", folder, "give a local one")
        self.folder = Path(folder)
        self.rank = rank
        self.batches_per_file = batches_per_file
        self.dtype = _floating("CaptureWriter.dtype", dtype)
        self.max_bytes = max_bytes
        self.stopped: str | None = None
        self._on_problem = on_problem or _warn
        self._current: list[Item] = []
        self._devices: set[torch.device] = set()
        self._pending: dict[str, list[Item]] = {}
        self._batches: dict[str, int] = {}
        self._calls: dict[tuple[str, str], int] = {}
        self._held_bytes = 0
        self._is_over_limit = False
        self._refused: set[str] = set()
        try:
            self._files = RankFiles(self.folder, rank)
        except OSError as error:
            raise RuleError(f"CaptureWriter.folder: cannot capture to {str(folder)!r}: {error}") from error

    @property
    def bytes_written(self) -> int:
        """The size of all files of this rank in the folder."""
        return self._files.size

    def add(
        self,
        name: str,
        tensor: Tensor,
        *,
        step: int,
        stage: str,
        batch_idx: int,
        sample_indices: Sequence[int] | Tensor | None = None,
        dataloader_idx: int = 0,
    ) -> None:
        """Collect a private copy of a tensor on the CPU.

        From an accelerator, the copy runs in parallel to the computation; `end_batch` waits for the copy. If the same name is
        added again in the same batch, it counts as another call of the module and gets a separate entry.

        Args:
            name: the name to read the tensor back by.
            tensor: a tensor of any shape; [N, ...] if it has a batch dimension.
            step: the training step.
            stage: `train`, `validate`, `test`, `predict`, or another name of letters, digits and underscores.
            batch_idx: the index of the batch in its epoch.
            sample_indices: the indices of the samples in the data set, [N]; None, the default, if unknown.
            dataloader_idx: the index of the loader in a stage with several loaders; 0 by default.

        Raises:
            RuleError: the stage cannot be part of a file's name.
        """
        if self.stopped is not None or self._is_over_limit:
            return
        if not stage.isidentifier():
            raise RuleError(f"CaptureWriter.add: stage must consist of letters, digits and underscores, got {stage!r}")
        if not can_be_stored(tensor):
            self._refuse(name, tensor)
            return
        dtype = self.dtype if self.dtype is not None and tensor.dtype in FLOATS else tensor.dtype
        size = tensor.numel() * dtype.itemsize
        if self.max_bytes is not None and self.bytes_written + self._held_bytes + size > self.max_bytes:
            # Only drop the tensors of this batch. end_batch() writes those of complete batches, because writing here would hold
            # up a hook.
            self._is_over_limit = True
            self._current.clear()
            return
        call = self._calls[stage, name] = self._calls.get((stage, name), -1) + 1
        samples = None if sample_indices is None else tuple(int(index) for index in sample_indices)
        copy = self._copy(tensor.detach(), dtype)
        self._current.append(Item(copy, name, call, step, stage, dataloader_idx, batch_idx, samples))
        self._held_bytes += size

    def end_batch(self) -> None:
        """End a batch: restart the count of calls, and write a file if enough batches are held."""
        self._calls.clear()
        if self.stopped is not None:
            return
        for device in self._devices:
            torch.accelerator.synchronize(device)
        self._devices.clear()
        for stage in {item.stage: None for item in self._current}:
            self._pending.setdefault(stage, []).extend(item for item in self._current if item.stage == stage)
            self._batches[stage] = self._batches.get(stage, 0) + 1
        self._current.clear()
        for stage in list(self._pending):
            if self._is_over_limit or self._batches[stage] >= self.batches_per_file:
                self._write(stage)
        if self._is_over_limit:
            self._stop(f"the next batch would exceed max_bytes={self.max_bytes}")

    def close(self) -> None:
        """Write the tensors that are held in memory; after that, `add` and `end_batch` do nothing."""
        self.end_batch()
        for stage in list(self._pending):
            self._write(stage)
        if self.stopped is None:
            self.stopped = "closed"
        self._files.remove_unfinished()

    def __enter__(self) -> Self:
        """The writer itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        """Close the writer, also after an exception: the captured tensors may show its reason."""
        self.close()

    def _copy(self, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        if tensor.device.type == "cpu":
            return tensor.to(dtype=dtype, memory_format=torch.contiguous_format, copy=True)
        self._devices.add(tensor.device)
        # Cast on the device, so that fewer bytes are copied. The copy goes to pinned memory, and the hook does not wait for it.
        return tensor.to(dtype=dtype, memory_format=torch.contiguous_format).to("cpu", non_blocking=True)

    def _write(self, stage: str) -> None:
        # There may be no items: if writing the file of another stage has just failed, the capture has stopped and dropped them.
        items = self._pending.pop(stage, [])
        self._batches.pop(stage, None)
        self._held_bytes -= sum(item.tensor.nbytes for item in items)
        if items:
            reason = self._files.write(stage, items, self.max_bytes)
            if reason:
                self._stop(reason)

    def _stop(self, reason: str) -> None:
        """Stop the capture with one message."""
        if self.stopped is not None:
            return
        self.stopped = reason
        self._current.clear()
        self._pending.clear()
        self._files.remove_unfinished()
        self._on_problem(f"the capture to {self.folder} stopped, the run continues: {reason}")

    def _refuse(self, name: str, tensor: Tensor) -> None:
        if name not in self._refused:
            self._refused.add(name)
            kind = "a nested tensor" if tensor.is_nested else f"{tensor.dtype} of {tensor.layout} on {tensor.device}"
            self._on_problem(f"{name} is not captured: {kind} cannot be stored")

    @staticmethod
    def check(where: str, *, batches_per_file: int, dtype: torch.dtype | str | None, max_bytes: int | None) -> None:
        """Check the options of a writer before its folder is known.

        Args:
            where: the prefix of an option's name in messages.
            batches_per_file: as for the writer.
            dtype: as for the writer.
            max_bytes: as for the writer.

        Raises:
            RuleError: an option is invalid.
        """
        as_count(f"{where}batches_per_file", batches_per_file, 1)
        _floating(f"{where}dtype", dtype)
        if max_bytes is not None:
            as_count(f"{where}max_bytes", max_bytes, 1)


def _floating(name: str, dtype: torch.dtype | str | None) -> torch.dtype | None:
    """The dtype to cast to, from the option `name`.

    Raises:
        RuleError: the option is neither one of `FLOATS` nor its name.
    """
    names = {str(floating).removeprefix("torch."): floating for floating in FLOATS}
    if isinstance(dtype, str) and dtype.removeprefix("torch.") in names:
        return names[dtype.removeprefix("torch.")]
    if dtype is not None and (isinstance(dtype, str) or dtype not in FLOATS):
        raise RuleError(f"{name} must be None, {', '.join(names)}, got {dtype!r}")
    return dtype


def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=3)
