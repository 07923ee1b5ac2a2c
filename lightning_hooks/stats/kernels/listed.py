"""The measurement and the comparison of lists of tensors on a device, with tables that the compiled part makes.

Parameters keep their addresses from step to step, and gradients mostly do, so the device mostly has the tables already.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightning_hooks.stats.kernels import cuda, driver, triton_code, triton_merge, triton_pairs
from lightning_hooks.stats.kernels.kept_tables import kept_on
from lightning_hooks.stats.kernels.triton_code import BLOCK
from lightning_hooks.stats.moments import MOMENTS

_HOST = 1  # of DLPack's types of devices


class _Kernels(NamedTuple):
    """The two kernels that serve a list.

    Args:
        of_list: writes a row of numbers for each span of the tensors.
        constants: of `of_list`, except for the code of the dtype.
        columns: the number of columns of such a row.
        merge: merges the rows of each tensor.
        chunk: the constant of `merge`.
        last: the last arguments of `merge`.
    """

    of_list: Any
    constants: dict[str, Any]
    columns: int
    merge: Any
    chunk: int
    last: tuple[int, ...] = ()


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
    constants = {"MAGNITUDES": magnitudes, "PAIRED": before is not None, **cuda._BLOCKS}
    chosen = _Kernels(triton_code.measure_list, constants, MOMENTS, triton_merge.merge_rows, triton_merge.CHUNK, (0,))
    return _launch_lists(chosen, out, offsets, tensors, before)


def compare_many(
    out: Tensor, offsets: Sequence[int] | NDArray[np.int64], tensors: Sequence[Tensor], others: Sequence[Tensor]
) -> list[int]:
    """As `kernels.compare_many`, for a state on a CUDA device: one launch for the pairs of each dtype, and one that adds up.

    Pairs are skipped if the compiled part does not find a tensor on the device of `out`, or if dtype or layout differ.
    """
    merge, chunk = triton_pairs.merge_products, triton_pairs.CHUNK
    chosen = _Kernels(triton_pairs.compare_list, cuda._BLOCKS, triton_pairs.COLUMNS, merge, chunk)
    return _launch_lists(chosen, out, offsets, tensors, others)


def _launch_lists(
    chosen: _Kernels,
    out: Tensor,
    offsets: Sequence[int] | NDArray[np.int64],
    tensors: Sequence[Tensor],
    others: Sequence[Tensor] | None,
) -> list[int]:
    """Launch the kernels for the tensors that the compiled part finds. Returns the indices of the other tensors."""
    compiled = driver.native() if driver.is_used else None
    if compiled is None:
        return list(range(len(tensors)))
    index = out.get_device()
    device = (driver.CUDA, index) if index >= 0 else (_HOST, 0)
    into = np.ascontiguousarray(offsets, dtype=np.int64)
    division = (BLOCK, cuda._PROGRAMS, cuda._MOST_BLOCKS)
    left: list[int]
    left, lists, merges, targets, segments = compiled.list_tables(tensors, others, into, device, division)
    if segments:
        with cuda._current(out):
            total = sum(programs for *_, programs in lists)
            rows = torch.empty(total or 1, chosen.columns, dtype=torch.float64, device=out.device)
            address = rows.data_ptr()
            for code, table, count, steps, programs in lists:
                if programs:
                    integers = (kept_on(out.device, table).data_ptr(), count, steps, address)
                    cuda._launch(chosen.of_list, programs, out, *integers, CODE=code, **chosen.constants)
                address += programs * 8 * chosen.columns
            merged = (kept_on(out.device, merges).data_ptr(), targets, segments, rows.data_ptr(), out.data_ptr(), *chosen.last)
            cuda._launch(chosen.merge, targets, out, *merged, CHUNK=chosen.chunk)
    return left
