"""The levels of the module tree at which rows are merged."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from lightning_hooks.plan.groups import block_of
from lightning_hooks.plan.row_index import StatColumn


class Levels(NamedTuple):
    """The levels of the module tree at which a stage merges rows; see `Limits`.

    Args:
        scalars: the level of each tensor and statistic; a statistic without a level is not written. None if no rows are merged.
        histograms: the same for histograms.
        pinned: the names of rows that are never merged.
    """

    scalars: Mapping[tuple[str, str], int] | None = None
    histograms: Mapping[tuple[str, str], int] | None = None
    pinned: frozenset[str] = frozenset()


def rows_of_blocks(column: StatColumn, level: int, groups: Collection[int]) -> dict[str, list[int]]:
    """The rows of each block at a level of the module tree, by the name of the block.

    Args:
        column: a statistic of a tensor, whose rows are merged.
        level: the level.
        groups: the rows to leave out.
    """
    blocks: dict[str, list[int]] = {}
    for name, row in zip(column.names, column.rows.tolist(), strict=True):
        if row not in groups:
            blocks.setdefault(block_of(name, level), []).append(row)
    return blocks
