"""The layout of the flat state of a table: sections of accumulators, the requests of the rank, then sections on request."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightning_hooks.errors import UnsupportedError
from lightning_hooks.stats.accumulators import MOMENTS, AccumulatorRows
from lightning_hooks.stats.host_copy import to_device
from lightning_hooks.stats.requests import length

Flat = TypeVar("Flat", Tensor, NDArray[np.float64])


def refuse_narrow(device: torch.device) -> None:
    """Raise if the device of a model cannot hold the state of a table, because it has no float64 numbers.

    Raises:
        UnsupportedError: the device is of type 'mps'.
    """
    if device.type == "mps":
        raise UnsupportedError(
            f"the model is on the device {device.type!r}, which has no float64 numbers, in which statistics and "
            "reports of transforms are computed; use accelerator='cpu', or in a plain loop model.cpu()"
        )


class Sections:
    """The sections of a flat state: the moments of every row, then a section for each further accumulator of some rows.

    A section holds a slot for each row that keeps its accumulator. A slot is as long as the accumulator has columns. The
    sections of accumulators that are measured on request come last, after the requests of the rank: in steps without them, the
    first part of the state has the layout `always`, and only that part is cleared, exchanged and copied.

    Args:
        rows: the number of rows of the table.
        kept: the accumulators besides the moments, each with the rows that keep it.
        owners: the number of owners of the table, each of which has requests.

    Attributes:
        kept: all accumulators, each with its rows: the moments, those that are always measured, then those on request.
        always: the layout without the sections on request; this object itself if there are none.
        requests: where a state has the requests of the rank.
        size: the number of elements of the whole state.

    Example:
        >>> from lightning_hooks.stats.accumulators import BUILT_IN
        >>> sections = Sections(2, [AccumulatorRows(BUILT_IN[1], (1,))])
        >>> [tuple(array.shape) for array in sections.split(sections.blank())]
        [(2, 9), (1, 509)]
    """

    def __init__(self, rows: int, kept: Sequence[AccumulatorRows] = (), owners: int = 1) -> None:
        always = [each for each in kept if not each.accumulator.on_request]
        on_request = [each for each in kept if each.accumulator.on_request]
        self.kept: tuple[AccumulatorRows, ...] = (AccumulatorRows(MOMENTS, tuple(range(rows))), *always, *on_request)
        self.always: Sections = Sections(rows, always, owners) if on_request else self
        self.owners = owners
        self._slots = [{row: slot for slot, row in enumerate(each.rows)} for each in self.kept]
        sizes = [len(each.rows) * each.accumulator.width for each in self.kept]
        ends = list(itertools.accumulate(sizes))
        first = ends[len(always)]
        requests = length(owners)
        self.requests = slice(first, first + requests)
        self.size = ends[-1] + requests
        self._ends = tuple(end + requests * (section > len(always)) for section, end in enumerate(ends))
        self._starts = tuple(end - size for end, size in zip(self._ends, sizes, strict=True))
        self._not_zero = [
            (start + position, end, each.accumulator.width, column.neutral)
            for each, start, end in zip(self.kept, self._starts, self._ends, strict=True)
            for position, column in enumerate(each.accumulator.columns)
            if column.neutral
        ]

    def blank(self, device: torch.device | str = "cpu") -> Tensor:
        """A new state, float64 [size], in which every number is neutral and nothing is requested."""
        state = torch.empty(self.size, dtype=torch.float64, device=device)
        self.clear(state)
        return state

    def clear(self, state: Tensor | NDArray[np.float64]) -> None:
        """Reset a state: every number is neutral, and nothing is requested."""
        state[:] = 0.0
        for first, end, width, neutral in self._not_zero:
            state[first:end:width] = neutral

    def slots(self, section: int, rows: Sequence[int]) -> list[int]:
        """The slots in a section of those of the rows that keep its accumulator."""
        slots = self._slots[section]
        return [slots[row] for row in rows if row in slots]

    def of_row(self, row: int) -> list[tuple[int, int]]:
        """The sections in which a row has a slot, each with the slot."""
        return [(section, slots[row]) for section, slots in enumerate(self._slots) if row in slots]

    def index(self, name: str) -> int | None:
        """The section of the accumulator with this name; None if no row keeps it."""
        return next((i for i, each in enumerate(self.kept) if each.accumulator.name == name), None)

    def span(self, name: str, row: int) -> slice | None:
        """Where a state has the numbers of a row; None if the row does not keep the accumulator with this name."""
        section = self.index(name)
        slot = None if section is None else self._slots[section].get(row)
        if section is None or slot is None:
            return None
        width = self.kept[section].accumulator.width
        start = self._starts[section] + slot * width
        return slice(start, start + width)

    def start(self, name: str, row: int) -> int | None:
        """Where the numbers of an accumulator and a row begin; None if the row does not keep it."""
        span = self.span(name, row)
        return None if span is None else span.start

    def starts(self, name: str, rows: Sequence[int]) -> NDArray[np.int64]:
        """Where the numbers of rows that keep the accumulator with this name begin in a state, int64 [rows].

        Raises:
            KeyError: a row does not keep the accumulator.
        """
        section = self.index(name)
        if section is None:
            raise KeyError(name)
        slots, width, start = self._slots[section], self.kept[section].accumulator.width, self._starts[section]
        return np.array([start + width * slots[row] for row in rows], dtype=np.int64)

    def moments_of(self, state: Flat) -> Flat:
        """The first section: raw moments, a view [rows, 9]."""
        return state[: self._ends[0]].reshape(-1, MOMENTS.width)

    def split(self, state: Flat) -> list[Flat]:
        """All sections, as views [rows that keep the accumulator, columns]."""
        return [
            state[start:end].reshape(-1, each.accumulator.width)
            for each, start, end in zip(self.kept, self._starts, self._ends, strict=True)
        ]

    def joined(self, arrays: Sequence[Tensor], requests: Tensor) -> Tensor:
        """A state, from its sections and the requests of a rank."""
        flat = [array.flatten() for array in arrays]
        always = len(self.always.kept)
        return torch.cat([*flat[:always], requests, *flat[always:]])


def rescale_sections(sections: Sections, arrays: Sequence[Tensor], rows: Sequence[int], factor: Tensor | float) -> None:
    """Rescale the sections of a state, in place, as if the tensors of rows had been multiplied by a factor.

    Args:
        sections: the layout of the state.
        arrays: those of the sections of the state, as from `Sections.split`; written.
        rows: the indices of rows whose tensors the loss scale multiplies.
        factor: a power of two.

    Example:
        >>> from lightning_hooks.stats.measurement import Measurement
        >>> from lightning_hooks.stats.table import Table
        >>> table = Table(1)
        >>> table.measuring.add(0, Measurement(torch.tensor([1.0, 3.0])))
        >>> rescale_sections(table.sections, table.sections.split(table.state), [0], 0.5)
        >>> table.moments[0, :3].tolist()
        [2.0, 1.0, 0.5]
    """
    for section, (each, array) in enumerate(zip(sections.kept, arrays, strict=True)):
        accumulator = each.accumulator
        if accumulator.always_scaled:
            array[:] = accumulator.rescale(array, factor)
        elif not accumulator.divided_first and (slots := sections.slots(section, rows)):
            index = to_device(slots, array.device)
            array[index] = accumulator.rescale(array[index], factor)
