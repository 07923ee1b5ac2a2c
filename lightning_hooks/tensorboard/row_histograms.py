"""Reads the histograms of rows from the tables of a run."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.rules.prefix import ROOT
from lightning_hooks.stats.stored_counts import SIDE, decode_counts
from lightning_hooks.tensorboard.messages import byte_strings
from lightning_hooks.tensorboard.run_index import RunIndex
from lightning_hooks.tensorboard.tags import PLUGIN, tensor_of_histograms

Floats = NDArray[np.float64]
Point = tuple[int, Floats, Floats]
"""A step, the right edges of the buckets from the first to the last that hold an element, and their counts."""

_LARGEST: Final = 128  # the exponent of the last edge
RIGHT_EDGES: Final = np.concatenate([-np.exp2(np.arange(_LARGEST - 1, -127, -1.0)), np.exp2(np.arange(-126, _LARGEST + 1.0))])


def tag_of(tensor: str, row: str) -> str:
    """The tag by which the page knows the histograms of a row, which is also that of a histogram that TensorBoard draws.

    Args:
        tensor: with the monitor's prefix, without `watch/`.
        row: the name of the row.
    """
    return f"{ROOT}{tensor}_histogram/{row}"


def with_rows(drawn: Iterable[str], rows: Collection[str], tensors: Iterable[str]) -> list[str]:
    """The tags of the histograms of rows, and those that only TensorBoard has.

    Args:
        drawn: the tags of TensorBoard's histograms.
        rows: the tags of the histograms of rows in the tables.
        tensors: the tensors whose rows these are: their histograms in TensorBoard are those of the same rows, or of blocks.
    """
    known = tuple(f"{root}{tensor}_histogram/" for tensor in tensors for root in (ROOT, ""))
    return [*rows, *(tag for tag in drawn if not tag.startswith(known))]


def points_of(row: int, steps: Iterable[tuple[int, Sequence[bytes]]]) -> list[Point]:
    """The histograms of a row; a damaged one is left out with a warning.

    Args:
        row: the index of the row.
        steps: for each step the bytes of all rows.
    """
    found: list[Point] = []
    for step, encoded in steps:
        if row >= len(encoded) or not encoded[row]:
            continue
        try:
            counts = decode_counts(encoded[row])
        except ValueError as error:
            warnings.warn(f"a damaged histogram of step {step} is left out ({error})", stacklevel=2)
            continue
        occupied = np.flatnonzero(counts)
        kept = slice(occupied[0], occupied[-1] + 1) if len(occupied) else slice(SIDE, SIDE + 1)
        found.append((step, RIGHT_EDGES[kept], counts[kept]))
    return found


class RowHistograms:
    """The histograms of the rows of a local run.

    Args:
        index: the index of the event files of the run.
    """

    def __init__(self, index: RunIndex) -> None:
        self._index = index
        # By tag of a row: the tags of the lists that have the row, each with the index of the row; of a version of the run.
        self._cached: tuple[int, dict[str, dict[str, int]], list[str]] | None = None

    @property
    def tensors(self) -> list[str]:
        """The tensors of which histograms of rows are stored, with the monitor's prefix."""
        return self._known()[1]

    @property
    def tags(self) -> Mapping[str, Mapping[str, int]]:
        """The tags of all rows, see `tag_of`, each with the lists that have the row, and the index of the row in each list."""
        return self._known()[0]

    def read(self, tags: Sequence[str], most: int) -> dict[str, list[Point]]:
        """Histograms by tag, each at no more than `most` evenly chosen steps.

        Args:
            tags: a subset of `tags` of this object.
            most: steps of a tag.
        """
        lists_of = self.tags
        groups = [*dict.fromkeys(tuple(lists_of[tag]) for tag in tags)]
        read = {
            group: [(step, list_tag, byte_strings(payload)) for step, list_tag, payload in points]
            for group, points in zip(groups, self._index.payloads(groups, most), strict=True)
        }
        found = {}
        for tag in tags:
            lists = lists_of[tag]
            at_step: dict[int, Point] = {}
            for step, list_tag, encoded in read[tuple(lists)]:
                at_step.update({point[0]: point for point in points_of(lists[list_tag], [(step, encoded)])})
            found[tag] = [*at_step.values()]
        return found

    def _known(self) -> tuple[dict[str, dict[str, int]], list[str]]:
        if self._cached is None or self._cached[0] != self._index.version:
            lists: dict[str, dict[str, int]] = {}
            tensors: dict[str, None] = {}
            for tag in self._index.tags("strings", PLUGIN):
                tensor = tensor_of_histograms(tag)
                if tensor is None:
                    continue
                tensors[tensor] = None
                for row, name in enumerate(self._index.row_list(tag)):
                    lists.setdefault(tag_of(tensor, name), {})[tag] = row
            self._cached = self._index.version, lists, [*tensors]
        return self._cached[1], self._cached[2]
