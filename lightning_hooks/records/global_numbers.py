"""The global numbers of a step: norms over all rows of a tensor, the loss, and the elements that are not finite."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.plan.row_index import RowIndex, joined
from lightning_hooks.plan.rows import BATCH, GRADIENT, LOSS
from lightning_hooks.stats.schema import COUNT, NONFINITE, squares
from lightning_hooks.stats.statistics import compute

Array = NDArray[np.float64]
_NORMS = {"grad": "run/grad_norm", "final_grad": "run/final_grad_norm", "param": "run/param_norm", "update": None}
"""Tensors whose norm over all rows is computed, and its tag; None if only `run/update_ratio` needs it."""


class GlobalNumbers:
    """The global numbers: norms over all rows of a tensor, and the number of elements of all rows that are not finite.

    Args:
        index: the row index of the moments.
    """

    def __init__(self, index: RowIndex) -> None:
        self._count = len(index) - len(index.members)  # without the groups after the rows, whose elements are those of rows
        of_rows = np.array(index.tensors[: self._count], dtype=np.object_)
        found = {tensor: np.flatnonzero(of_rows == tensor) for tensor in _NORMS}
        rows = {tensor: indices for tensor, indices in found.items() if len(indices)}
        self._tensors = tuple(rows)
        self._loss_row, self._whole_gradient, self._batch = (_row_of(index, each) for each in (LOSS, GRADIENT, BATCH))
        # The rows of all tensors one after the other, and the offset at which the rows of each tensor begin.
        self._rows = joined([*rows.values()])
        self._starts = np.cumsum([0, *map(len, rows.values())], dtype=np.intp)[:-1]

    def __call__(self, moments: Array, noise_scale: float) -> dict[str, float]:
        """The numbers of a step by tag, without norms of tensors that were not measured and without a noise scale of NaN."""
        rows = moments[: self._count]
        counts = rows[:, COUNT]
        squared = squares(rows)  # 0 for rows that were not measured
        with np.errstate(over="ignore", invalid="ignore"):
            # If elements are infinite, `squares` is NaN although the norm is infinite. The statistic `norm` is right
            # there too, but slower.
            if not np.isfinite(np.add.reduce(squared)):
                squared = np.where(counts > 0, np.square(compute("norm", rows)), 0.0)
            sums = self._sums(squared)
        norms = dict(zip(self._tensors, np.sqrt(sums).tolist(), strict=True))
        if not counts.all():
            measured = dict(zip(self._tensors, self._sums(counts).tolist(), strict=True))
            norms = {tensor: norm for tensor, norm in norms.items() if measured[tensor]}
        out = {tag: norms[tensor] for tensor, tag in _NORMS.items() if tag is not None and tensor in norms}
        update, param = norms.get("update"), norms.get("param")
        if update is not None and param is not None:
            out["run/update_ratio"] = update / param if param else (0.0 if update == 0 else float("inf"))
        if not math.isnan(noise_scale):
            out["run/noise_scale"] = noise_scale
        if self._whole_gradient is not None and counts[self._whole_gradient] > 0:
            out["run/grad_norm"] = float(np.sqrt(squared[self._whole_gradient]))
        if self._loss_row is not None and counts[self._loss_row] > 0:
            out["run/loss"] = float(compute("mean", rows[self._loss_row : self._loss_row + 1])[0])
        out["run/nonfinite"] = float(np.add.reduce(rows[:, NONFINITE]))
        if self._batch is not None:
            # A batch may hold NaN on purpose, as a mask of its targets.
            out["run/nonfinite"] -= float(rows[self._batch, NONFINITE])
        return out

    def _sums(self, of_rows: Array) -> Array:
        sums: Array = np.add.reduceat(of_rows.take(self._rows), self._starts) if self._tensors else np.empty(0)
        return sums


def _row_of(index: RowIndex, tensor: str) -> int | None:
    """The row of a tensor of the whole step; None if there is none."""
    return next(iter(index.of(tensor)[0].tolist()), None)
