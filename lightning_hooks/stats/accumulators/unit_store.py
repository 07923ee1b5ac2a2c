"""The store of units: one tensor [units, 4] for each row, whose size the first measured tensor determines."""

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
from lightning_hooks.stats.units.directions import directions_joined, is_bidirectional
from lightning_hooks.stats.units.schema import ABS_MAX, COLUMNS, SQUARE, SUM, ZEROS, merge_neighbours, rescale
from lightning_hooks.stats.units.spec import UnitSpec
from lightning_hooks.stats.units.statistics import compute_all

Array = NDArray[np.float64]
_SUMMED: Final = [SUM, SQUARE, ZEROS]
_SKIPPED: Final = -torch.inf
"""Replaces the number of zeros on a rank that no longer measures the units of a row. Every sum over ranks with it is -inf."""
VECTORS: Final = ("abs_max", "rms", "mean", "zero_fraction")
"""The numbers of every unit that step views and event files hold if a rule sets `vectors`."""


class UnitStore:
    """Keeps the units of rows, as a `Store`.

    Args:
        rows: the rows that keep units, ascending.
        options: for each row the module whose output or input is measured, and how its units are measured.
        columns: the number of columns of the accumulator: the number of units, and one for each statistic in `NAMES`.
        context: what the store needs from the table.

    Attributes:
        by_row: the units of each row of the table, float64 [units, 4], or None before the first tensor.
        axes: the dimension of the units of each row, which the first tensor determines.

    Raises:
        UnsupportedError: the model is tensor-parallel.

    Example:
        >>> context = StoreContext("cpu", True, "row {}".format, 1)
        >>> store = UnitStore((0,), {0: (nn.Linear(2, 2), UnitSpec())}, 9, context)
        >>> store.due = {0}
        >>> store.add(0, Measurement(torch.tensor([[1.0, 0.0], [-3.0, 0.0]])))
        >>> store.by_row[0].tolist()
        [[-2.0, 10.0, 3.0, 0.0], [0.0, 0.0, 0.0, 2.0]]
        >>> moments = np.array([[4.0, -0.5, 9.0, 4.0, -3.0, 1.0, 2.0, 0.0, 0.0]])
        >>> store.exchange().finish(moments, 1.0, ()).numbers[0, :2].tolist()  # two units, half of them dead
        [2.0, 0.5]
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
        self._bidirectional = {row for row, (module, _) in options.items() if is_bidirectional(module)}
        self.axes: dict[int, int] = {}
        self._axis_by_shape: dict[tuple[int, ...], int] = {}
        # Rows for which all ranks hold the same number of units.
        self._agreed: set[int] = set()
        # Rows whose units are not measured any more, for example because two tensors had different numbers of units.
        self._skipped: set[int] = set()
        self._columns, self._context = columns, context
        # The memory of all tensors in `by_row`, in the order of `rows`; None after one of them was replaced.
        self._flat: Tensor | None = None

    def clear(self) -> None:
        """See `Store`."""
        if not self.due:
            return
        # Units of rows that are not due are never read before they are cleared, so one fill clears all rows.
        if self._flat is None:
            self._put_together()
        elif self._flat.is_cpu:
            self._flat.numpy().fill(0.0)  # a sixth of the time of `zero_`
        else:
            self._flat.zero_()
        for row in self._skipped:
            units = self.by_row[row]
            if units is not None:
                units[:, ZEROS] = _SKIPPED

    def writer(self, row: int, fallback: Write, compiled_writer: Callable[[int], Write | None]) -> Write:
        """See `Store`. The fallback takes the first tensor, which determines the axis that the compiled writer needs."""
        if row in self.axes:
            return compiled_writer(self.axes[row]) or fallback
        write: Write | None = None

        def call(tensor: Tensor) -> None:
            nonlocal write
            if write is None and row in self.axes:
                write = compiled_writer(self.axes[row]) or fallback
            (write or fallback)(tensor)

        return call

    def add(self, row: int, measurement: Measurement) -> None:
        """See `Store`. If the units cannot be read or their number has changed, warn once and skip the row from then on."""
        if row in self._skipped:
            return
        measurement = self._with_directions_joined(row, measurement)
        axis = self._axis(row, tuple(measurement.tensor.shape))
        new = None if axis is None else measurement.units(axis)
        if axis is None or new is None:
            self._skip(row, "its tensors have no units that can be read")
            return
        units = self.by_row[row]
        if units is None:
            units = self._make(row, len(new))
        if len(units) != len(new):
            self._skip(row, f"it had {len(units)} units along dimension {axis}, and now has {len(new)}")
            return
        units.copy_(reference.merge(units, new.to(units.device, non_blocking=True)))

    def _with_directions_joined(self, row: int, measurement: Measurement) -> Measurement:
        """The measurement of a tensor; of the states of a bidirectional layer, with the units of both directions together."""
        units = self.by_row[row]
        if units is None or row not in self._bidirectional:
            return measurement
        joined = directions_joined(measurement.tensor, len(units))
        return measurement if joined is None else Measurement(joined)

    def rescale(self, rows: Collection[int], factor: Tensor) -> None:
        """See `Store`."""
        for row in self.due:
            units = self.by_row[row]
            if units is not None and row in rows:
                units.copy_(rescale(units, factor))

    def exchange(self) -> PendingUnits | None:
        """See `Store`."""
        due = [row for row in self.rows if row in self.due]
        if not due:
            return None
        if world_size(self._context.alone) > 1:
            self._agree([row for row in due if row not in self._agreed])
        held = {row: units for row in due if (units := self.by_row[row]) is not None}
        sizes = {row: len(units) for row, units in held.items()}
        if self._flat is not None and not self._flat.is_cpu and sum(sizes.values()) == len(self._flat):
            # A copy from a device is made before later work on the stream, so the next step may write into the same memory.
            flat = self._flat
        else:
            flat = torch.cat([*held.values()]) if held else torch.zeros(0, COLUMNS, dtype=torch.float64)
        if world_size(self._context.alone) > 1:
            flat = _merge_ranks(flat)
        return PendingUnits(self, sizes, begin_copy(flat))

    def _make(self, row: int, size: int) -> Tensor:
        """Give a row new units of no elements."""
        self._flat = None
        units = self.by_row[row] = _zeros(size, self._context.device)
        return units

    def _put_together(self) -> None:
        """Give all rows that have units new ones, which lie one after the other."""
        sizes = {row: len(units) for row in self.rows if (units := self.by_row[row]) is not None}
        self._flat = _zeros(sum(sizes.values()), self._context.device)
        for row, units in zip(sizes, self._flat.split([*sizes.values()]), strict=True):
            self.by_row[row] = units

    def _axis(self, row: int, shape: tuple[int, ...]) -> int | None:
        """The dimension of the units of a row, which its first tensor determines; None if this tensor has no such dimension."""
        if row not in self.axes:
            kind, requested = self._kinds[row], self._specs[row].axis
            of_class = known_axis(kind, len(shape))
            if of_class is not None:
                self._axis_by_shape[shape] = of_class
            axis = requested if requested is not None else of_class
            # The class of an activation function implies no axis: take the axis of the last module with a tensor of the same
            # shape.
            axis = self._axis_by_shape.get(shape, axis_of(kind, len(shape))) if axis is None else axis
            if axis is None or not -len(shape) <= axis < len(shape):
                return None
            self.axes[row] = axis
        axis = self.axes[row]
        return axis if -len(shape) <= axis < len(shape) else None

    def _skip(self, row: int, why: str) -> None:
        """Stop measuring the units of a row, and warn with the reason if a user asked for them."""
        self._skipped.add(row)
        units = self.by_row[row]
        if units is not None:
            units[:, ZEROS] = _SKIPPED
        if self._specs[row].is_written:
            warnings.warn(
                f"the units of {self._context.label(row)} are not measured: {why}. Watch(units=…) names their dimension",
                stacklevel=2,
            )

    def _agree(self, rows: Sequence[int]) -> None:
        """Make all ranks hold the same number of units for these rows, including ranks that did not call the module.

        All ranks must call this method with the same rows.
        """
        if not rows:
            return
        sizes = [0 if (units := self.by_row[row]) is None else len(units) for row in rows]
        # One MAX reduction gives the greatest number of units of each row and, negated, the least. A rank without units sends
        # -(2**62), which is never the maximum while another rank has units.
        both = torch.tensor([*sizes, *(-size if size else -(2**62) for size in sizes)], device=self._context.device)
        torch.distributed.all_reduce(both, torch.distributed.ReduceOp.MAX)
        most, negated_least = both.view(2, -1).tolist()
        for row, size, negated in zip(rows, most, negated_least, strict=True):
            # Skip the row if no rank has measured it yet.
            if not size:
                continue
            if size != -negated and row not in self._skipped:
                self._skip(row, f"on one rank it has {size} units, on another {-negated}")
            if self.by_row[row] is None or len(self.by_row[row]) != size:  # type: ignore[arg-type]
                units = self._make(row, size)
                units[:, ZEROS] = _SKIPPED if row in self._skipped else 0.0
            self._agreed.add(row)


class PendingUnits:
    """The units of a finished step, whose copy from the device may not be complete yet.

    Args:
        store: the store that kept the units.
        sizes: the number of units of each row, in the order in which `copy` holds the rows.
        copy: a copy of the units of all rows in host memory, float64 [units, 4].
    """

    def __init__(self, store: UnitStore, sizes: Mapping[int, int], copy: HostCopy) -> None:
        self._store, self._sizes, self._copy = store, sizes, copy

    def finish(self, moments: Array, scale: float, scaled: Collection[int]) -> StoredNumbers:
        """See `PendingNumbers`.

        Raises:
            RuleError: `heads` of a row that was measured does not divide the number of its units.
        """
        store, flat = self._store, self._copy.wait()
        slots = {row: slot for slot, row in enumerate(store.rows)}
        numbers = np.zeros((len(store.rows), store._columns))
        vectors: dict[tuple[int, str], Array] = {}
        for (size, heads), (rows, starts) in self._alike().items():
            units, elements = flat[starts[:, None] + np.arange(size)], moments[rows, COUNT] / size  # [rows, units, 4], [rows]
            is_measured = (elements > 0) & (units[:, 0, ZEROS] != _SKIPPED)
            rows, units, elements = rows[is_measured], units[is_measured], elements[is_measured]
            if scale != 1.0:
                is_scaled = np.isin(rows, [*scaled])
                units[is_scaled] = rescale(units[is_scaled], 1.0 / scale)
            if heads is not None and len(rows):
                if size % heads:
                    raise RuleError(
                        f"heads={heads}: the {size} units of {store._context.label(int(rows[0]))} do not form so many groups "
                        f"of equal size; choose a divisor of {size}"
                    )
                units, elements = merge_neighbours(units, heads), elements * (size // heads)
            for row, own, count in zip(rows.tolist(), units, elements.tolist(), strict=True):
                if store._specs[row].vectors:
                    vectors.update({(row, name): values for name, values in _vectors(own, count).items()})
            into = [slots[row] for row in rows.tolist()]
            numbers[into, 0] = units.shape[1]
            numbers[into, 1:] = compute_all(units, elements, moments[rows, MIN] >= 0)
        numbers.flags.writeable = False
        return StoredNumbers(numbers, vectors)

    def _alike(self) -> dict[tuple[int, int | None], tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """By number of units and `heads`, the rows and the index of the first unit of each, int64 [rows].

        The statistics of such rows are computed in one call.
        """
        alike: dict[tuple[int, int | None], list[tuple[int, int]]] = {}
        start = 0
        for row, size in self._sizes.items():
            if size:
                alike.setdefault((size, self._store._specs[row].heads), []).append((row, start))
            start += size
        return {key: tuple(np.array(each, dtype=np.int64).T) for key, each in alike.items()}


def _zeros(units: int, device: Any) -> Tensor:
    # A validation may run in inference mode, whose tensors cannot be written to outside of it.
    with torch.inference_mode(False):
        return torch.zeros(units, COLUMNS, dtype=torch.float64, device=device)


def _vectors(units: Array, elements: float) -> dict[str, Array]:
    vectors: dict[str, Any] = {
        "abs_max": units[:, ABS_MAX].copy(),
        "rms": np.sqrt(units[:, SQUARE] / elements),
        "mean": units[:, SUM] / elements,
        "zero_fraction": units[:, ZEROS] / elements,
    }
    for values in vectors.values():
        values.flags.writeable = False
    return vectors


def _merge_ranks(units: Tensor) -> Tensor:
    """The units [units, 4] merged over ranks, all of which must call this function."""
    merged = units.clone()
    sums, greatest = units[:, _SUMMED].contiguous(), keys_of(units[:, ABS_MAX])
    torch.distributed.all_reduce(sums, torch.distributed.ReduceOp.SUM)
    torch.distributed.all_reduce(greatest, torch.distributed.ReduceOp.MAX)
    merged[:, _SUMMED], merged[:, ABS_MAX] = sums, numbers_of(greatest)
    return merged
