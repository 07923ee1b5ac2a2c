"""Operations that measure a tensor within compiled code on a CUDA device, without Python and also in CUDA graphs.

The compiler launches their kernels itself. A measurement goes into the row at a place, see `triton_graphs`; what is measured in
a replay is merged into the row by the replay. So no one need know which graphs were replayed: a row that was not measured in a
step holds what clearing the table has left.

Importing this module raises where Triton is not installed.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor
from torch.library import triton_op, wrap_triton

from lightning_hooks.stats.kernels import triton_graphs
from lightning_hooks.stats.kernels.addresses import CODES
from lightning_hooks.stats.kernels.cuda import _BLOCKS, _spans
from lightning_hooks.stats.kernels.triton_code import WARPS
from lightning_hooks.stats.kernels.triton_merge import CHUNK
from lightning_hooks.stats.moments import MOMENTS

is_used = False
"""Whether compiled code measures by these operations. They have not run on a device yet.

A checkpointed compiled region that is recomputed inside an inner gradient would count twice: a replay cannot ask which pass
runs.
"""
_TABLE: Final = 6  # the numbers of a table for one row of one segment


@triton_op("lightning_hooks::measure", mutates_args={"place"})
def measure(x: Tensor, place: Tensor, magnitudes: bool) -> None:
    """Merge a tensor into the row at a place. The place is declared to be changed, so that the compiler keeps the operation."""
    _measure(x, place, place, magnitudes)


@triton_op("lightning_hooks::measure_grad", mutates_args={})
def measure_grad(grad: Tensor, place: Tensor, magnitudes: bool) -> Tensor:
    """As `measure`. Returns zeros [1], the gradient of a probe: the compiler keeps an operation whose result is used."""
    out = torch.empty(1, dtype=torch.float32, device=grad.device)
    _measure(grad, place, out, magnitudes)
    return out


def _measure(x: Tensor, place: Tensor, out: Tensor, magnitudes: bool) -> None:
    # A permuted view without gaps is contiguous, because the order of elements does not matter.
    strides = x.stride()
    x = x.permute(sorted(range(x.ndim), key=lambda dim: -strides[dim])).contiguous()
    size = x.numel()
    if size == 0:
        return
    steps, programs = _spans(size)
    rows = torch.empty(programs * MOMENTS, dtype=torch.float64, device=x.device)
    table = torch.empty(_TABLE, dtype=torch.int64, device=x.device)
    wrap_triton(triton_graphs.measure_at_place)[(programs,)](
        x, size, steps, place, rows, table, CODE=CODES[x.dtype], MAGNITUDES=magnitudes, **_BLOCKS, num_warps=WARPS
    )
    counts = out is place
    wrap_triton(triton_graphs.merge_at_place)[(1,)](rows, table, place, out, COUNTS=counts, CHUNK=CHUNK, num_warps=WARPS)
