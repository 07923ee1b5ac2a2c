"""Helpers of the tests of captures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from lightning_hooks.capture import CaptureWriter
from lightning_hooks.capture.index import FileRecord, read_folder, read_index


def batch(value: float, rows: int = 2, columns: int = 3) -> Tensor:
    return torch.full((rows, columns), float(value))


def capture_batches(folder: Path, number: int, *, rank: int = 0, first: int = 0, **options: Any) -> CaptureWriter:
    """Capture one tensor [2, 3] for each batch, filled with 10 * rank + batch_idx; the step is the batch index."""
    writer = CaptureWriter(folder, rank=rank, **options)
    for batch_idx in range(first, first + number):
        writer.add("layer", batch(10 * rank + batch_idx), step=batch_idx, stage="train", batch_idx=batch_idx)
        writer.end_batch()
    return writer


def records(folder: Path, rank: int = 0) -> list[FileRecord]:
    return [record for record in read_folder(folder) if record.rank == rank]


def check_whole(folder: Path) -> int:
    """Check that every file in the index exists with all its tensors in the right shapes; return the number of tensors."""
    number = 0
    for index in folder.glob("index-rank*.jsonl"):
        for record in read_index(index)[0]:
            with safe_open(folder / record.file, framework="pt") as opened:
                assert sorted(opened.keys()) == sorted(entry.key for entry in record.entries)
                for entry in record.entries:
                    assert tuple(opened.get_tensor(entry.key).shape) == entry.shape
                    number += 1
    return number
