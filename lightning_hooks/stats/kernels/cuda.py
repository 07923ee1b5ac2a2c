"""The measurement on a CUDA device, in Triton: a list of tensors in one launch, and a second, tiny one that merges its blocks.

Nothing here waits for the device: sizes are known on the host, the arguments of the kernels go through pinned memory, and rows
are written where they are kept. The reference measures what these kernels do not: dtypes that are not floating, and subclasses.

Importing this module raises where Triton is not installed.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

import numpy as np
import torch
import triton
from torch import Tensor, nn
from triton import knobs

from lightning_hooks.stats.host_copy import to_device
from lightning_hooks.stats.kernels import reference, triton_code
from lightning_hooks.stats.kernels.triton_code import BFLOAT16, BLOCK, CHUNK, FLOAT16, FLOAT32, FLOAT64
from lightning_hooks.stats.moments import MOMENTS
from lightning_hooks.stats.tensor_kinds import has_memory

__all__ = ["attempt", "describe", "measure", "measure_many", "measure_many_into"]

_CODES = {torch.float32: FLOAT32, torch.float16: FLOAT16, torch.bfloat16: BFLOAT16, torch.float64: FLOAT64}
_PROGRAMS = 4096  # keep a large device busy, and leave few rows to merge
_ALIGNED = 16  # bytes, for wide loads


def measure(tensor: Tensor) -> Tensor:
    """The raw moments of one tensor, without waiting for its device.

    Args:
        tensor: real and dense, any shape.

    Returns:
        float64 [9] on the tensor's device.
    """
    return measure_many([tensor])[0] if _measurable(tensor) else reference.measure(tensor)


def measure_many(tensors: Sequence[Tensor]) -> Tensor:
    """The raw moments of several tensors on one device.

    Returns:
        float64 [len(tensors), 9].
    """
    if not any(_measurable(tensor) for tensor in tensors):
        return reference.measure_many(tensors)
    out = torch.empty(len(tensors), MOMENTS, dtype=torch.float64, device=tensors[0].device)
    for position in measure_many_into(out, range(0, out.numel(), MOMENTS), tensors):
        out[position] = reference.measure(tensors[position])
    return out


def measure_many_into(
    out: Tensor,
    offsets: Sequence[int],
    tensors: Sequence[Tensor],
    before: Sequence[Tensor] | None = None,
    *,
    merging: bool = False,
) -> list[int]:
    """Write the raw moments of several tensors where they are kept.

    Args:
        out: float64, contiguous, on a device.
        offsets: the element of it at which the row of each tensor begins; all distinct.
        tensors: in the same order.
        before: tensors to subtract, in float32 at least, without materializing the differences; none by default.
        merging: whether to merge with the present rows instead of overwriting them.

    Returns:
        The indices of the tensors that were skipped: other dtypes, subclasses, another device, or a pair that differs in shape
        or dtype.
    """
    taken: list[int] = []
    flat: list[Tensor] = []
    less: list[Tensor] = []
    for position, tensor in enumerate(tensors):
        if not _measurable(tensor) or tensor.device != out.device:
            continue
        if before is None:
            flat.append(_in_one_piece(tensor))
        else:
            other = before[position]
            if not _measurable(other) or (other.device, other.dtype, other.shape) != (out.device, tensor.dtype, tensor.shape):
                continue
            if other.stride() != tensor.stride():
                tensor, other = tensor.contiguous(), other.contiguous()
            flat.append(_in_one_piece(tensor))
            less.append(_in_one_piece(other))
        taken.append(position)
    if taken:
        _launch(out, [offsets[position] for position in taken], flat, less, merging)
    kept = set(taken)
    return [position for position in range(len(tensors)) if position not in kept]


def attempt(device: torch.device) -> None:
    """Measure a tensor of one element, so that an installation that does not work raises now."""
    if knobs.runtime.interpret:  # it would read host memory at addresses of the device
        raise RuntimeError("TRITON_INTERPRET is set, and the interpreter reads no memory of a device")
    measure(torch.ones(1, device=device))


def describe() -> str:
    """The version of Triton that runs here."""
    return str(triton.__version__)


def _launch(out: Tensor, offsets: list[int], tensors: list[Tensor], before: list[Tensor], merging: bool) -> None:
    sizes = np.array([tensor.numel() for tensor in tensors], dtype=np.int64)
    blocks = -(-sizes // BLOCK)
    steps = max(1, -(-int(blocks.sum()) // _PROGRAMS))  # blocks of one program
    programs = -(-blocks // steps)
    first = np.concatenate([[0], np.cumsum(programs)])
    total = int(first[-1])
    parts = [
        [tensor.data_ptr() for tensor in tensors],
        sizes,
        [_CODES[tensor.dtype] for tensor in tensors],
        offsets,
        first,
        np.repeat(np.arange(len(tensors)), programs),
        [tensor.data_ptr() for tensor in before],
    ]
    table = to_device(np.concatenate([np.asarray(part, dtype=np.int64) for part in parts]), out.device)
    rows = torch.empty(max(total, 1), MOMENTS, dtype=torch.float64, device=out.device)
    with torch.cuda.device(out.device) if out.is_cuda else nullcontext():  # Triton launches on the current device
        if total:
            triton_code.measure_blocks[(total,)](table, len(tensors), steps, rows, PAIRED=bool(before), BLOCK=BLOCK)
        triton_code.merge_rows[(len(tensors),)](table, len(tensors), rows, out, MERGING=merging, CHUNK=CHUNK)


def _measurable(tensor: Tensor) -> bool:
    return (
        type(tensor) in (Tensor, nn.Parameter)
        and tensor.layout is torch.strided
        and tensor.dtype in _CODES
        and has_memory(tensor)
    )


def _in_one_piece(tensor: Tensor) -> Tensor:
    """The same elements, in any order, one after the other in memory; a copy only where they are not, or not aligned."""
    tensor = tensor.detach()
    if tensor.is_neg():
        tensor = tensor.resolve_neg()
    if not tensor.is_contiguous() and not _is_dense(tensor):
        tensor = tensor.contiguous()
    return tensor.clone() if tensor.data_ptr() % _ALIGNED else tensor


def _is_dense(tensor: Tensor) -> bool:
    """Whether a tensor is a permutation of a contiguous one."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True
