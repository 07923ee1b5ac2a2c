"""The rows of a recorder: what it watches, and which of them hold the numbers of one kind of tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray
from torch import nn

from lightning_hooks.engine.watching.observer import Observer
from lightning_hooks.plan.plan import Plan
from lightning_hooks.plan.resolve import resolve
from lightning_hooks.rules import Watch
from lightning_hooks.rules.layers import has_children
from lightning_hooks.rules.schedule import EveryN
from lightning_hooks.stats import kernels
from lightning_hooks.stats.schema import MAX, MIN, NONFINITE

Array = NDArray[np.float64]
Rows = NDArray[np.intp]
_STATS: Final = ("abs_max", "nonfinite")
_CAPACITY: Final = 1 << 16
"""The measurements that a trail keeps: 2 MB."""


def plan_of(model: nn.Module, label: str = "") -> Plan:
    """The plan of a recorder: the loss, each call of a layer, its gradient, and the gradients that the optimizers use.

    Args:
        model: the root module.
        label: how messages name the callback.
    """
    rules = []
    if has_children(model):
        rules.append(Watch(modules="*", select="layers", tensors=("output", "output_grad"), stats=_STATS, strict=False))
    if any(True for _ in model.parameters()):
        rules.append(Watch(params="*", tensors=("grad",), stats=_STATS, strict=False))
    return resolve(model, rules, EveryN(), label, with_loss=True, loss_alone=True, name="the recorder's rules")


def rows_by_tensor(plan: Plan) -> dict[str, Rows]:
    """The numbers of the rows of each tensor, such as `output`."""
    tensors = [row.tensor for row in plan.rows]
    return {name: np.flatnonzero([tensor == name for tensor in tensors]) for name in set(tensors)}


def trail_of(observer: Observer, rows: Rows) -> kernels.Trail:
    """The trail of an observer. Recorders of one observer have the same rows, and share a trail.

    Args:
        observer: measures the rows; gets a new trail if it has none.
        rows: the rows of the recorder in the table of the observer.
    """
    if observer.fallback.trail is None:
        numbers = np.full(len(observer.plan.rows), -1, np.int32)
        numbers[rows] = np.arange(len(rows))
        observer.fallback.trail = kernels.Trail(_CAPACITY, numbers.tobytes())
    return observer.fallback.trail


def have_nonfinite(moments: Array, rows: Rows | Sequence[int] | None) -> bool:
    """Whether a row has a number that is not finite.

    Args:
        moments: of all rows, float64 [rows, 9].
        rows: the numbers of the rows; None if there are none.
    """
    return rows is not None and bool(np.count_nonzero(moments[:, NONFINITE].take(rows)))


def have_infinite_only(moments: Array, rows: Rows) -> bool:
    """Whether a row has an infinite number, and none has NaN; arguments as of `have_nonfinite`."""
    extremes = moments[rows][:, [MIN, MAX]]
    return bool(np.isinf(extremes).any() and not np.isnan(extremes).any())
