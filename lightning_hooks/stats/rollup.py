"""When there are more scalars than anybody can browse: rows merged exactly along the module tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from lightning_hooks.stats.moments import merge_by_index
from lightning_hooks.stats.scalars import STATISTICS, compute, ratio

EVERYTHING = "all"


@dataclass(frozen=True)
class TapLabel:
    """What the roll-up knows of a row: name, tensor and its mergeable statistics."""

    name: str
    tensor: str
    stats: tuple[str, ...]


def block_of(name: str, depth: int) -> str:
    """The block of the module tree that holds a name.

    Example:
        >>> block_of("encoder.layers.0.attn.weight", 3), block_of("encoder.bias", 3), block_of("x.y", 0)
        ('encoder.layers.0', 'encoder.bias', 'all')
    """
    return ".".join(name.split(".")[:depth]) if depth else EVERYTHING


class RollUp:
    """The deepest level of the module tree at which the scalars fit.

    Args:
        labels: every row that is written as scalars.
        room: how many scalars there may be.

    Example:
        >>> labels = [TapLabel(f"layers.{i}.weight", "grad", ("norm",)) for i in range(10)]
        >>> RollUp(labels, room=5).depth
        1
    """

    def __init__(self, labels: Sequence[TapLabel], room: int) -> None:
        self.labels = list(labels)
        deepest = max((label.name.count(".") + 1 for label in labels), default=0)
        self.depth = next((d for d in range(deepest, 0, -1) if len(self._tags(d)) <= room), 0)
        groups: dict[tuple[str, str], int] = {}
        stats: dict[int, dict[str, None]] = {}
        index = []
        for label in labels:
            group = groups.setdefault((label.tensor, block_of(label.name, self.depth)), len(groups))
            index.append(group)
            stats.setdefault(group, {}).update(dict.fromkeys(_mergeable(label.stats)))
        self._index = torch.tensor(index, dtype=torch.int64)
        self._groups = [(tensor, block, tuple(stats[group])) for (tensor, block), group in groups.items()]

    def _tags(self, depth: int) -> set[tuple[str, str, str]]:
        return {(label.tensor, stat, block_of(label.name, depth)) for label in self.labels for stat in _mergeable(label.stats)}

    def scalars(self, moments: NDArray[np.float64], params: NDArray[np.float64] | None = None) -> dict[str, float]:
        """Tag to value of the merged rows that hold any elements.

        Args:
            moments: of the labelled rows, in their order [rows, 9].
            params: for `ratio`, the moments of the parameter behind each row [rows, 9].
        """
        merged = merge_by_index(torch.from_numpy(moments), self._index, len(self._groups)).numpy()
        below = None if params is None else merge_by_index(torch.from_numpy(params), self._index, len(self._groups)).numpy()
        out: dict[str, float] = {}
        for group, (tensor, block, stats) in enumerate(self._groups):
            if merged[group, 0] == 0:
                continue
            row = merged[group : group + 1]
            for stat in stats:
                if stat != "ratio":
                    out[f"{tensor}_{stat}/{block}"] = float(compute(stat, row)[0])
                elif below is not None:
                    out[f"{tensor}_{stat}/{block}"] = float(ratio(row, below[group : group + 1])[0])
        return out


def _mergeable(stats: Sequence[str]) -> list[str]:
    return [stat for stat in stats if stat in STATISTICS or stat == "ratio"]
