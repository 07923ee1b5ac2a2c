"""The measurement of a list of tensors on a device, with tables that the compiled part makes.

Parameters keep their addresses from step to step, and gradients mostly do, so the device mostly has the tables already.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightning_hooks.stats.kernels import cuda, driver, triton_code, triton_merge
from lightning_hooks.stats.kernels.kept_tables import kept_on
from lightning_hooks.stats.kernels.triton_code import BLOCK
from lightning_hooks.stats.moments import MOMENTS

_HOST = 1  # of DLPack's types of devices


def measure_listed(
    out: Tensor,
    offsets: Sequence[int] | NDArray[np.int64],
    tensors: Sequence[Tensor],
    before: Sequence[Tensor] | None,
    magnitudes: bool,
) -> list[int]:
    """As `cuda.measure_many_into`, for the tensors that the compiled part finds on the device of `out`.

    Args:
        out: written.
        offsets: of the rows in `out`.
        tensors: one for each offset.
        before: a tensor to subtract from each of `tensors`; None for nothing.
        magnitudes: as for `cuda.measure_many_into`.

    Returns:
        The indices of the tensors that are not measured: Python must look at them.
    """
    compiled = driver.native() if driver.is_used else None
    if compiled is None:
        return list(range(len(tensors)))
    index = out.get_device()
    device = (driver.CUDA, index) if index >= 0 else (_HOST, 0)
    into = np.ascontiguousarray(offsets, dtype=np.int64)
    constants = {"MAGNITUDES": magnitudes, "PAIRED": before is not None, **cuda._BLOCKS}
    division = (BLOCK, cuda._PROGRAMS, cuda._MOST_BLOCKS)
    left: list[int]
    left, lists, merges, targets, segments = compiled.list_tables(tensors, before, into, device, division)
    if segments:
        with cuda._current(out):
            total = sum(programs for *_, programs in lists)
            rows = torch.empty(total or 1, MOMENTS, dtype=torch.float64, device=out.device)
            address = rows.data_ptr()
            for code, table, count, steps, programs in lists:
                if programs:
                    integers = (kept_on(out.device, table).data_ptr(), count, steps, address)
                    cuda._launch(triton_code.measure_list, programs, out, *integers, CODE=code, **constants)
                address += programs * cuda._ROW_BYTES
            merged = (kept_on(out.device, merges).data_ptr(), targets, segments, rows.data_ptr(), out.data_ptr(), 0)
            cuda._launch(triton_merge.merge_rows, targets, out, *merged, CHUNK=triton_merge.CHUNK)
    return left
