"""The units that a table keeps: a tensor for each row, of the size that the first measured tensor tells."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lightning_hooks.errors import RuleError, UnsupportedError
from lightning_hooks.stats.accumulators.store import StoreContext, StoredNumbers, Write
from lightning_hooks.stats.host_copy import HostCopy, begin_copy
from lightning_hooks.stats.keys import keys_of, numbers_of
from lightning_hooks.stats.measurement import Measurement
from lightning_hooks.stats.processes import world_size
from lightning_hooks.stats.schema import COUNT, MIN
from lightning_hooks.stats.units import reference
from lightning_hooks.stats.units.axis import axis_of, known_axis
from lightning_hooks.stats.units.schema import ABS_MAX, COLUMNS, SQUARE, SUM, ZEROS, merge_neighbours, rescale
from lightning_hooks.stats.units.spec import UnitSpec
from lightning_hooks.stats.units.statistics import NAMES, compute

Array = NDArray[np.float64]
_SUMMED: Final = [SUM, SQUARE, ZEROS]
_ODD: Final = -torch.inf
"""The number of zeros of units that are not measured any more on some rank: no sum over ranks makes another number of it."""
VECTORS: Final = ("abs_max", "rms", "mean", "zero_fraction")
"""The numbers of each unit that views and files have where a rule asks for vectors."""


class UnitStore:
    """Keeps units, as a `Store`.

    Args:
        rows: that keep units.
        options: of each row the module whose output or input it is, and what is asked of its units.
        columns: how many numbers views have of a row.
        context: of the table.

    Attributes:
        by_row: for each row of the table its units, float64 [units, 4], or None; the compiled writer reads this list.
    """

    name = "units"

    def __init__(
        self, rows: Sequence[int], options: Mapping[int, tuple[nn.Module, UnitSpec]], columns: int, context: StoreContext
    ) -> None:
        if context.parallel > 1:
            raise UnsupportedError(
                "units: with tensor parallelism a rank holds some units of a tensor, or copies of all; which of the two cannot "
                "be told. Omit units and its statistics there"
            )
        self.rows = tuple(rows)
        self.due: Collection[int] = frozenset()
        self.by_row: list[Tensor | None] = [None] * (max(rows, default=-1) + 1)
        self._specs = {row: spec for row, (_, spec) in options.items()}
        self._kinds = {row: type(module) for row, (module, _) in options.items()}
        self._axes: dict[int, int] = {}
        self._axis_by_shape: dict[tuple[int, ...], int] = {}
        self._agreed: set[int] = set()  # rows of whose number of units all ranks know
        self._odd: set[int] = set()  # rows whose tensors do not have the same number of units
        self._columns, self._context = columns, context

    def clear(self) -> None:
        """As of `Store`."""
        for row in self.due:
            units = self.by_row[row]
            if units is not None:
                units.zero_()
                if row in self._odd:
                    units[:, ZEROS] = _ODD

    def writer(self, row: int, otherwise: Write, direct: Callable[[int], Write | None]) -> Write:
        """As of `Store`. The compiled writer needs the axis, which the first measured tensor tells."""
        write: Write | None = None

        def call(tensor: Tensor) -> None:
            nonlocal write
            if write is None and row in self._axes:
                write = direct(self._axes[row]) or otherwise
            (write or otherwise)(tensor)

        return call

    def add(self, row: int, measurement: Measurement) -> None:
        """As of `Store`."""
        if row in self._odd:
            return
        axis = self._axis(row, tuple(measurement.tensor.shape))
        found = None if axis is None else measurement.units(axis)
        if axis is None or found is None:
            self._skip(row, "its tensors have no units that can be read")
            return
        units = self.by_row[row]
        if units is None:
            units = self.by_row[row] = torch.zeros(len(found), COLUMNS, dtype=torch.float64, device=self._context.device)
        if len(units) != len(found):
            self._skip(row, f"it had {len(units)} units along dimension {axis}, and now has {len(found)}")
            return
        units.copy_(reference.merge(units, found.to(units.device, non_blocking=True)))

    def rescale(self, rows: Collection[int], factor: Tensor) -> None:
        """As of `Store`."""
        for row in self.due:
            units = self.by_row[row]
            if units is not None and row in rows:
                units.copy_(rescale(units, factor))

    def exchange(self) -> PendingUnits | None:
        """As of `Store`."""
        due = [row for row in self.rows if row in self.due]
        if not due:
            return None
        if world_size(self._context.alone) > 1:
            self._agree([row for row in due if row not in self._agreed])
        held = {row: units for row in due if (units := self.by_row[row]) is not None}
        sizes = {row: len(units) for row, units in held.items()}
        flat = torch.cat([*held.values()]) if held else torch.zeros(0, COLUMNS, dtype=torch.float64)
        if world_size(self._context.alone) > 1:
            flat = _merge_ranks(flat)
        return PendingUnits(self, sizes, begin_copy(flat))

    def _axis(self, row: int, shape: tuple[int, ...]) -> int | None:
        """The dimension of the units of a row, as the first tensor tells."""
        if row not in self._axes:
            kind, asked = self._kinds[row], self._specs[row].axis
            known = known_axis(kind, len(shape))
            if known is not None:
                self._axis_by_shape[shape] = known
            axis = asked if asked is not None else known
            # An activation has the axis of the last module with an output of its shape.
            axis = self._axis_by_shape.get(shape, axis_of(kind, len(shape))) if axis is None else axis
            if axis is None or not -len(shape) <= axis < len(shape):
                return None
            self._axes[row] = axis
        axis = self._axes[row]
        return axis if -len(shape) <= axis < len(shape) else None

    def _skip(self, row: int, why: str) -> None:
        """Measure the units of a row no more; one warning says why."""
        self._odd.add(row)
        units = self.by_row[row]
        if units is not None:
            units[:, ZEROS] = _ODD
        warnings.warn(
            f"the units of {self._context.label(row)} are not measured: {why}. Watch(units=…) names their dimension",
            stacklevel=2,
        )

    def _agree(self, rows: Sequence[int]) -> None:
        """Let all ranks have units of the same number for these rows, also a rank that did not call the module. Collective."""
        if not rows:
            return
        sizes = [0 if (units := self.by_row[row]) is None else len(units) for row in rows]
        both = torch.tensor([*sizes, *(-size if size else -(2**62) for size in sizes)], device=self._context.device)
        torch.distributed.all_reduce(both, torch.distributed.ReduceOp.MAX)
        most, least = both.view(2, -1).tolist()
        for row, size, negated in zip(rows, most, least, strict=True):
            if not size:
                continue  # no rank has called the module yet
            if size != -negated and row not in self._odd:
                self._skip(row, f"on one rank it has {size} units, on another {-negated}")
            if self.by_row[row] is None or len(self.by_row[row]) != size:  # type: ignore[arg-type]
                units = self.by_row[row] = torch.zeros(size, COLUMNS, dtype=torch.float64, device=self._context.device)
                units[:, ZEROS] = _ODD if row in self._odd else 0.0
            self._agreed.add(row)


class PendingUnits:
    """Units of a step, perhaps still on their way from a device.

    Args:
        store: whose they are.
        sizes: how many units each row has; the rows lie one after the other.
        copy: of all units, float64 [units, 4].
    """

    def __init__(self, store: UnitStore, sizes: Mapping[int, int], copy: HostCopy) -> None:
        self._store, self._sizes, self._copy = store, sizes, copy

    def finish(self, moments: Array, scale: float, scaled: Collection[int]) -> StoredNumbers:
        """As of `PendingNumbers`."""
        store, flat = self._store, self._copy.wait()
        place = {row: i for i, row in enumerate(store.rows)}
        numbers = np.zeros((len(store.rows), store._columns))
        vectors: dict[tuple[int, str], Array] = {}
        alike: dict[int, list[tuple[int, Array, float]]] = {}  # rows with the same number of units are computed together
        start = 0
        for row, size in self._sizes.items():
            units, start = flat[start : start + size], start + size
            if size and units[0, ZEROS] == _ODD:
                continue
            if row in scaled and scale != 1.0:
                units = rescale(units, 1.0 / scale)
            spec, elements = store._specs[row], float(moments[row, COUNT]) / size
            if spec.heads is not None:
                if size % spec.heads:
                    raise RuleError(
                        f"heads={spec.heads}: the {size} units of {store._context.label(row)} do not form so many groups of "
                        f"equal size; choose a divisor of {size}"
                    )
                elements *= size // spec.heads
                units = merge_neighbours(units, spec.heads)
            if elements > 0:
                alike.setdefault(len(units), []).append((row, units, elements))
                if spec.vectors:
                    vectors.update({(row, name): values for name, values in _vectors(units, elements).items()})
        for size, several in alike.items():
            rows = [row for row, _, _ in several]
            stacked, elements_of = np.stack([units for _, units, _ in several]), np.array([each for _, _, each in several])
            into = [place[row] for row in rows]
            numbers[into, 0] = size
            for column, stat in enumerate(NAMES, start=1):
                numbers[into, column] = compute(stat, stacked, elements_of, moments[rows, MIN] >= 0)
        numbers.flags.writeable = False
        return StoredNumbers(numbers, vectors)


def _vectors(units: Array, elements: float) -> dict[str, Array]:
    found: dict[str, Any] = {
        "abs_max": units[:, ABS_MAX].copy(),
        "rms": np.sqrt(units[:, SQUARE] / elements),
        "mean": units[:, SUM] / elements,
        "zero_fraction": units[:, ZEROS] / elements,
    }
    for values in found.values():
        values.flags.writeable = False
    return found


def _merge_ranks(units: Tensor) -> Tensor:
    """The units of all ranks together [units, 4]. Collective."""
    merged = units.clone()
    sums, greatest = units[:, _SUMMED].contiguous(), keys_of(units[:, ABS_MAX])
    torch.distributed.all_reduce(sums, torch.distributed.ReduceOp.SUM)
    torch.distributed.all_reduce(greatest, torch.distributed.ReduceOp.MAX)
    merged[:, _SUMMED], merged[:, ABS_MAX] = sums, numbers_of(greatest)
    return merged
