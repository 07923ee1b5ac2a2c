"""The global numbers of a step: norms over all rows of a tensor, the loss, and the elements that are not finite."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.plan.row_index import RowIndex, joined
from lightning_hooks.plan.rows import BATCH, GRADIENT, LOSS
from lightning_hooks.stats.schema import COUNT, MEAN, NONFINITE, unguarded_squares
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
        self._whole = _WholeRows(*(_row_of(index, each) for each in (LOSS, GRADIENT, BATCH)))
        # The rows of the whole step alone, and where each of them is in this array.
        known = [row for row in self._whole if row is not None]
        self._known = np.array(known, dtype=np.intp)
        self._among_known = _WholeRows(*(None if row is None else known.index(row) for row in self._whole))
        # The rows of all tensors one after the other, and the offset at which the rows of each tensor begin.
        self._rows = joined([*rows.values()])
        self._starts = np.cumsum([0, *map(len, rows.values())], dtype=np.intp)[:-1]

    def __call__(self, moments: Array, noise_scale: float) -> dict[str, float]:
        """The numbers of a step by tag, without norms of tensors that were not measured and without a noise scale of NaN."""
        rows = moments[: self._count]
        counts = rows[:, COUNT]
        with np.errstate(over="ignore", invalid="ignore"):
            squared = _squared(rows)
            norms = dict(zip(self._tensors, np.sqrt(self._sums(squared)).tolist(), strict=True))
        if not counts.all():
            measured = dict(zip(self._tensors, self._sums(counts).tolist(), strict=True))
            norms = {tensor: norm for tensor, norm in norms.items() if measured[tensor]}
        out = {tag: norms[tensor] for tensor, tag in _NORMS.items() if tag is not None and tensor in norms}
        update, param = norms.get("update"), norms.get("param")
        if update is not None and param is not None:
            out["run/update_ratio"] = update / param if param else (0.0 if update == 0 else float("inf"))
        if not math.isnan(noise_scale):
            out["run/noise_scale"] = noise_scale
        _add_whole(out, rows, squared, self._whole)
        return out

    def of_whole(self, moments: Array) -> dict[str, float]:
        """The same numbers, of a step at which no rows but those of the loss, the whole gradient and the batch are measured."""
        out: dict[str, float] = {}
        rows = moments.take(self._known, axis=0)
        with np.errstate(over="ignore", invalid="ignore"):
            _add_whole(out, rows, _squared(rows), self._among_known)
        return out

    def _sums(self, of_rows: Array) -> Array:
        sums: Array = np.add.reduceat(of_rows.take(self._rows), self._starts) if self._tensors else np.empty(0)
        return sums


class _WholeRows(NamedTuple):
    """The rows of the tensors of the whole step; None for one that there is not."""

    loss: int | None
    gradient: int | None
    batch: int | None


def _squared(rows: Array) -> Array:
    """The sum of squares of every row, 0 for rows that were not measured; for a caller inside `np.errstate`."""
    squared = unguarded_squares(rows)
    # If elements are infinite, the sum is NaN although the norm is infinite. The statistic `norm` is right there too, but
    # slower.
    if np.isfinite(np.add.reduce(squared)):
        return squared
    return np.where(rows[:, COUNT] > 0, np.square(compute("norm", rows)), 0.0)


def _add_whole(out: dict[str, float], rows: Array, squared: Array, whole: _WholeRows) -> None:
    """Add the numbers of the whole step to those of the rows of tensors."""
    if whole.gradient is not None and rows[whole.gradient, COUNT] > 0:
        out["run/grad_norm"] = float(np.sqrt(squared[whole.gradient]))
    if whole.loss is not None and rows[whole.loss, COUNT] > 0:
        out["run/loss"] = float(rows[whole.loss, MEAN])
    out["run/nonfinite"] = float(np.add.reduce(rows[:, NONFINITE]))
    if whole.batch is not None:
        # A batch may hold NaN on purpose, as a mask of its targets.
        out["run/nonfinite"] -= float(rows[whole.batch, NONFINITE])


def _row_of(index: RowIndex, tensor: str) -> int | None:
    """The row of a tensor of the whole step; None if there is none."""
    return next(iter(index.of(tensor)[0].tolist()), None)
