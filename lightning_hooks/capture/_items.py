"""What a writer holds in memory, and which tensors it can store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from lightning_hooks.capture.index import Entry
from lightning_hooks.errors import RuleError

FLOATS: Final = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
# fmt: off
STORED: Final = frozenset({
    *FLOATS, torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64, torch.complex128, torch.bool,
    torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64,
})
# fmt: on


@dataclass(frozen=True, slots=True)
class Item:
    """A collected tensor that is not on disk yet."""

    name: str
    call: int
    step: int
    stage: str
    dataloader_idx: int
    batch_idx: int
    sample_indices: tuple[int, ...] | None
    tensor: Tensor

    def stored(self) -> Tensor:
        """What the file holds: complex numbers as pairs [..., 2] of real ones, since it has no dtype for all of them."""
        return torch.view_as_real(self.tensor) if self.tensor.is_complex() else self.tensor

    def entry(self, rank: int, run: int, file: str, key: str) -> Entry:
        """Its line in the index."""
        return Entry(
            name=self.name,
            call=self.call,
            step=self.step,
            stage=self.stage,
            rank=rank,
            run=run,
            dataloader_idx=self.dataloader_idx,
            batch_idx=self.batch_idx,
            shape=tuple(self.tensor.shape),
            dtype=str(self.tensor.dtype).removeprefix("torch."),
            sample_indices=self.sample_indices,
            bytes=self.tensor.nbytes,
            file=file,
            key=key,
        )


def floating(dtype: torch.dtype | str | None) -> torch.dtype | None:
    """The dtype to cast to, from the option of the writer.

    Raises:
        RuleError: it is not one of `FLOATS`, nor the name of one.
    """
    names = {str(known).removeprefix("torch."): known for known in FLOATS}
    if isinstance(dtype, str) and dtype.removeprefix("torch.") in names:
        return names[dtype.removeprefix("torch.")]
    if dtype is not None and (isinstance(dtype, str) or dtype not in FLOATS):
        raise RuleError(f"CaptureWriter.dtype must be None, {', '.join(names)}, got {dtype!r}")
    return dtype
