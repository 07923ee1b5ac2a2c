"""The layout of the flat state of a table: a section for each accumulator, and the requests of the rank."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightning_hooks.errors import UnsupportedError
from lightning_hooks.stats.accumulators import MOMENTS, Kept
from lightning_hooks.stats.requests import REQUESTS

Flat = TypeVar("Flat", Tensor, NDArray[np.float64])


def refuse_narrow(device: torch.device) -> None:
    """Refuse the device of a model that cannot hold the state of a table: it has no float64 numbers."""
    if device.type == "mps":
        raise UnsupportedError(
            f"the model is on the device {device.type!r}, which has no float64 numbers, in which statistics and "
            "reports of transforms are computed; use accelerator='cpu', or in a plain loop model.cpu()"
        )


class Sections:
    """The sections of a flat state: the moments of every row first, then what some rows keep besides.

    Args:
        rows: how many rows the table has.
        kept: the other accumulators, each with its rows.

    Attributes:
        kept: all accumulators, each with its rows; the moments first.

    Example:
        >>> from lightning_hooks.stats.accumulators import BUILT_IN
        >>> sections = Sections(2, [Kept(BUILT_IN[1], (1,))])
        >>> [tuple(part.shape) for part in sections.split(sections.blank())]
        [(2, 9), (1, 509)]
    """

    def __init__(self, rows: int, kept: Sequence[Kept] = ()) -> None:
        self.kept: tuple[Kept, ...] = (Kept(MOMENTS, tuple(range(rows))), *kept)
        self._slots = [{row: slot for slot, row in enumerate(each.rows)} for each in self.kept]
        sizes = [len(each.rows) * each.accumulator.width for each in self.kept]
        self._ends = tuple(itertools.accumulate(sizes))
        self._starts = tuple(end - size for end, size in zip(self._ends, sizes, strict=True))
        self._not_zero = [
            (start + position, end, each.accumulator.width, column.neutral)
            for each, start, end in zip(self.kept, self._starts, self._ends, strict=True)
            for position, column in enumerate(each.accumulator.columns)
            if column.neutral
        ]

    @property
    def size(self) -> int:
        """Elements of the whole state."""
        return self._ends[-1] + REQUESTS

    def blank(self, device: torch.device | str = "cpu") -> Tensor:
        """A state in which nothing was measured, float64."""
        state = torch.empty(self.size, dtype=torch.float64, device=device)
        self.clear(state)
        return state

    def clear(self, state: Tensor | NDArray[np.float64]) -> None:
        """Reset a state: every number is neutral, and nothing is requested."""
        state[:] = 0.0
        for first, end, width, neutral in self._not_zero:
            state[first:end:width] = neutral

    def slot(self, section: int, row: int) -> int | None:
        """Where a row lies in a section; None if it does not keep the accumulator."""
        return self._slots[section].get(row)

    def slots(self, section: int, rows: Sequence[int]) -> list[int]:
        """Where those of the rows lie that keep the accumulator of a section."""
        known = self._slots[section]
        return [known[row] for row in rows if row in known]

    def of_row(self, row: int) -> list[tuple[int, int]]:
        """The sections in which a row keeps something, and where it lies in each."""
        return [(section, known[row]) for section, known in enumerate(self._slots) if row in known]

    def index(self, name: str) -> int | None:
        """The section of an accumulator; None where no row keeps it."""
        return next((i for i, each in enumerate(self.kept) if each.accumulator.name == name), None)

    def offset(self, section: int, slot: int) -> int:
        """The first element of a row in the state."""
        return self._starts[section] + slot * self.kept[section].accumulator.width

    def moments_of(self, state: Flat) -> Flat:
        """The first part of `split`: raw moments [rows, 9]."""
        return state[: self._ends[0]].reshape(-1, MOMENTS.width)

    def split(self, state: Flat) -> list[Flat]:
        """The sections, as views [rows that keep the accumulator, columns]."""
        return [
            state[start:end].reshape(-1, each.accumulator.width)
            for each, start, end in zip(self.kept, self._starts, self._ends, strict=True)
        ]
