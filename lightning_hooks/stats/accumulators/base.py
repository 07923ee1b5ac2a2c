"""The base class of accumulators, each of which defines one kind of numbers that a table keeps of its rows over a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightning_hooks.stats.accumulators.store import Store, StoreContext
from lightning_hooks.stats.columns import Column, Reduction, merge_columns
from lightning_hooks.stats.measurement import Measurement
from lightning_hooks.stats.row_states import RowStates
from lightning_hooks.stats.schema import COUNT

Array = NDArray[np.float64]


class Accumulator:
    """Defines one kind of numbers: how a tensor is measured, how parts are merged, and which statistics follow.

    An accumulator holds no numbers: the table, a step view or an event file holds them. A subclass sets `name`, `columns` and
    `statistics`, and writes `measure` and `compute`. Merging and rescaling follow from the rules of its columns.

    Attributes:
        name: the key of the numbers in a step view and in an event file.
        columns: the numbers of one row.
        statistics: the names of the statistics that follow from the numbers, as in rules and tags.
        divided_first: whether a gradient is divided by the loss scale before it is measured. If not, the numbers are rescaled
            when the step ends, each by the `power` of its column.
        always_scaled: whether the loss scale multiplies the numbers of every row. If not, it multiplies only those of gradients
            of activations.
        compiled: whether the compiled writer computes the numbers. If not, Python measures the tensors of these rows.
        followed: the statistics that also need numbers of earlier steps; see `history`.
        stored: the name of each column in an event file; empty if an event file stores only the requested statistics.
        separate: whether a `Store` keeps the numbers, outside of the table's state.
        on_request: whether a row is measured only in steps at which a rule requests a statistic of the numbers. If not, it is
            measured in every watched step of the row.
        over_steps: what a window of steps holds in an event file: `total`, the numbers merged over its steps; `mean`, those of
            its mean step; or `last`, those of the last of its steps at which the row was measured.
        from_one_tensor: whether `measure` computes the numbers from single tensors. If not, it returns None, and a store or the
            monitor writes the numbers.

    Example:
        >>> class Largest(Accumulator):
        ...     name, columns, statistics = "largest", (Column("greatest", merge="max", power=1),), ("largest",)
        ...
        ...     def measure(self, measurement, row):
        ...         return measurement.tensor.max().double().reshape(1)
        ...
        ...     def compute(self, stat, states):
        ...         return states["largest"][:, 0]
        >>> parts = torch.tensor([[[1.0]], [[3.0]]], dtype=torch.float64)
        >>> from lightning_hooks.stats.columns import STACKED
        >>> Largest().merge(parts, STACKED).tolist()
        [[3.0]]
    """

    name: str = ""
    columns: Sequence[Column] = ()
    statistics: tuple[str, ...] = ()
    divided_first: bool = False
    always_scaled: bool = False
    compiled: bool = False
    followed: tuple[str, ...] = ()
    stored: Sequence[str] = ()
    from_one_tensor: bool = True
    separate: bool = False
    on_request: bool = False
    over_steps: Literal["total", "mean", "last"] = "last"

    @property
    def width(self) -> int:
        """The number of columns."""
        return len(self.columns)

    def serves(self, stat: str) -> bool:
        """Whether the statistic of this name follows from the numbers."""
        return stat in self.statistics

    def neutral(self, device: torch.device | str = "cpu") -> Tensor:
        """The numbers of a row without elements, float64 [columns]; merging with them changes nothing. Waits for no device."""
        # `torch.tensor(numbers, device=…)` and `numbers[position] = number` would copy from the host and wait for the device.
        numbers = torch.zeros(self.width, dtype=torch.float64, device=device)
        for position, column in enumerate(self.columns):
            if column.neutral:
                numbers[position].fill_(column.neutral)
        return numbers

    def measure(self, measurement: Measurement, row: str) -> Tensor | None:
        """The numbers of one tensor.

        Args:
            measurement: the measurement of the tensor, which all accumulators of the row share.
            row: the kind of tensor and its module or parameter, for messages.

        Returns:
            float64 [columns] on the tensor's device; None if `from_one_tensor` is False.

        Raises:
            UnmeasurableError: the tensor has no elements to read.
        """
        raise NotImplementedError

    def merge(self, values: Any, how: Reduction, *, over_rows: bool = False) -> Any:
        """The numbers of unions of parts: calls, micro-batches, ranks or rows.

        Args:
            values: the numbers of the parts, a torch tensor or a NumPy array [..., columns].
            how: assigns parts to unions.
            over_rows: whether the parts are rows that are displayed as one; a column may have another rule for them.
        """
        return merge_columns(self.columns, values, how, over_rows=over_rows)

    def rescale(self, values: Tensor, factor: Tensor | float) -> Tensor:
        """The numbers after all elements were multiplied by a factor; a new tensor.

        Args:
            values: float64 [..., columns].
            factor: positive.
        """
        out = values.clone()
        for position, column in enumerate(self.columns):
            if column.power:
                out[..., position] *= factor**column.power
        return out

    def compute(self, stat: str, states: RowStates) -> Array:
        """One statistic of some rows.

        Args:
            stat: one of the names for which `serves` is True.
            states: the numbers of these rows.

        Returns:
            float64 [rows]; NaN for a row without a value.
        """
        raise NotImplementedError

    def encode(self, numbers: Array) -> Array:
        """The numbers [..., columns] as an event file stores them: a transformation that keeps their range within float32."""
        return numbers

    def is_measured(self, stat: str, states: RowStates, values: Array) -> NDArray[np.bool_]:
        """Which rows have a value of the statistic at this step, bool [rows]. If such a value is NaN, the NaN was measured.

        Args:
            stat: the name of the statistic.
            states: the numbers of these rows.
            values: the result of `compute` for these rows, float64 [rows].
        """
        measured: NDArray[np.bool_] = states["moments"][:, COUNT] > 0
        return measured

    def missing(self, stat: str) -> str | None:
        """The end of the message of an error when a statistic of a row that does not keep these numbers is read.

        None stands for no error: in a step view the statistic of such a row is NaN.
        """
        return None

    def history(self, asked: NDArray[np.bool_]) -> History | None:
        """A new `History` for the rows that keep this accumulator; None if nothing is carried from step to step.

        Args:
            asked: of which of the rows a statistic in `followed` is requested, bool [rows].
        """
        return None

    def store(self, kept: AccumulatorRows, context: StoreContext) -> Store:
        """A new store for the numbers of a table; called only if `separate` is True.

        Args:
            kept: this accumulator with its rows.
            context: what the store needs from the table.
        """
        raise NotImplementedError

    def for_views(self) -> Accumulator:
        """The accumulator that step views keep. A view may outlive the fit, so its accumulators must not refer to the model."""
        return self


class History(Protocol):
    """Numbers that an accumulator carries from step to step, such as averages. A checkpoint contains them."""

    def update(self, states: RowStates) -> Array:
        """Update the history with a step, and fill in the columns that depend on earlier steps.

        Args:
            states: the numbers of all rows that keep the accumulator.

        Returns:
            The completed numbers of the accumulator, float64 [rows, columns].
        """

    def state(self, row: int) -> list[float]:
        """The history of a row, for a checkpoint; `row` counts the rows that keep the accumulator."""

    def load(self, row: int, state: Sequence[float] | None) -> None:
        """Continue the history of a row from `state` of a checkpoint; None starts it again."""


class AccumulatorRows(NamedTuple):
    """An accumulator with the rows of a table that keep it.

    Args:
        accumulator: defines the numbers.
        rows: the indices of the rows in the table, ascending.
        options: the options of each row for a store, by row; see the store of the accumulator. Empty without a store.

    Example:
        >>> from lightning_hooks.stats.accumulators import BUILT_IN
        >>> kept = AccumulatorRows(BUILT_IN[1], rows=(0, 2))
        >>> kept.accumulator.name, kept.accumulator.width
        ('histogram', 509)
    """

    accumulator: Accumulator
    rows: tuple[int, ...]
    options: Mapping[int, Any] = {}
