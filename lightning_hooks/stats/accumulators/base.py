"""Accumulator: one kind of numbers that a table keeps of its rows over a step, and everything that follows from the kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lightning_hooks.stats.accumulators.store import Store, StoreContext
from lightning_hooks.stats.columns import Column, Reduction, merge_columns
from lightning_hooks.stats.measurement import Measurement
from lightning_hooks.stats.schema import COUNT

Array = NDArray[np.float64]


class RowStates(Protocol):
    """What the accumulators of a step keep of some rows."""

    @property
    def ranks(self) -> int:
        """How many ranks were merged."""

    def __getitem__(self, name: str) -> Array:
        """The numbers of one accumulator, float64 [rows, columns]."""


class Accumulator:
    """Says what is kept of a row, how a tensor is measured, how parts are merged, and which statistics follow.

    An accumulator holds no numbers: these lie in the table, in a step view or in an event file. A subclass sets `name`,
    `columns` and `statistics`, and writes `measure` and `compute`; the rules of its columns do the rest.

    Attributes:
        name: the key of its numbers in a step view and in an event file.
        columns: the numbers of one row.
        statistics: the statistics that follow, as rules and tags name them.
        divided_first: whether a gradient is divided by the loss scale before it is measured. Otherwise the numbers are divided
            when the step ends, by the power of each column.
        always_scaled: whether the numbers of every row were measured under the loss scale, not only those of gradients of
            activations.
        compiled: whether the compiled writer measures it. All others are measured in Python.
        followed: the statistics that need numbers of earlier steps too.
        stored: the names under which the columns go into an event file; empty if only the requested statistics do.
        separate: whether a store keeps the numbers outside of the table's state.
        from_one_tensor: whether the numbers follow from single tensors. Otherwise somebody else fills them in.

    Example:
        >>> class Largest(Accumulator):
        ...     name, columns, statistics = "largest", (Column("greatest", "max", power=1),), ("largest",)
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

    @property
    def width(self) -> int:
        """How many numbers it keeps of a row."""
        return len(self.columns)

    def serves(self, stat: str) -> bool:
        """Whether a statistic follows from what it keeps."""
        return stat in self.statistics

    def neutral(self, device: torch.device | str = "cpu") -> Tensor:
        """The numbers of no elements, float64 [columns]."""
        return torch.tensor([column.neutral for column in self.columns], dtype=torch.float64, device=device)

    def measure(self, measurement: Measurement, row: str) -> Tensor | None:
        """The numbers of one tensor.

        Args:
            measurement: of the tensor, shared with all others that read it.
            row: the tensor and its module or parameter, for messages.

        Returns:
            float64 [columns] on the tensor's device; None if the numbers do not follow from one tensor.
        """
        raise NotImplementedError

    def merge(self, values: Any, how: Reduction, *, over_rows: bool = False) -> Any:
        """The numbers of unions of parts.

        Args:
            values: of the parts, [..., columns], of torch or of NumPy.
            how: which parts are united.
            over_rows: whether the parts are rows that are shown as one.
        """
        return merge_columns(self.columns, values, how, over_rows=over_rows)

    def rescale(self, values: Tensor, factor: Tensor | float) -> Tensor:
        """The numbers [..., columns] of the same elements times a positive factor."""
        out = values.clone()
        for position, column in enumerate(self.columns):
            if column.power:
                out[..., position] *= factor**column.power
        return out

    def compute(self, stat: str, states: RowStates) -> Array:
        """One statistic of some rows.

        Args:
            stat: one that it serves.
            states: what is kept of these rows.

        Returns:
            float64 [rows]; NaN where it has no value.
        """
        raise NotImplementedError

    def encode(self, numbers: Array) -> Array:
        """The numbers [..., columns] as an event file has them, where they are float32."""
        return numbers

    def is_measured(self, stat: str, states: RowStates, values: Array) -> NDArray[np.bool_]:
        """Which rows have the statistic at this step, given its values: a NaN of these was measured."""
        measured: NDArray[np.bool_] = states["moments"][:, COUNT] > 0
        return measured

    def missing(self, stat: str) -> str | None:
        """What an error says of a row that does not keep it; None if there is no error, and the row has no value."""
        return None

    def history(self, asked: NDArray[np.bool_]) -> History | None:
        """What it follows from step to step; None for nothing.

        Args:
            asked: for which of its rows a statistic of `followed` is requested, bool [rows].
        """
        return None

    def store(self, kept: Kept, context: StoreContext) -> Store:
        """What keeps the numbers of a table, for an accumulator that is `separate`.

        Args:
            kept: the rows.
            context: of the table.
        """
        raise NotImplementedError

    def for_views(self) -> Accumulator:
        """The accumulator for step views, which may be kept after the fit: it holds nothing of the model's."""
        return self


class History(Protocol):
    """What an accumulator follows from step to step, such as averages. A checkpoint contains it."""

    def update(self, states: RowStates) -> Array:
        """Take a step, and complete its numbers.

        Args:
            states: what is kept of all its rows.

        Returns:
            The numbers with those that follow from earlier steps, float64 [rows, columns].
        """

    def state(self, row: int) -> list[float]:
        """What is known of a row, for a checkpoint."""

    def load(self, row: int, state: Sequence[float] | None) -> None:
        """Continue a row from a checkpoint; None starts the row again."""


class Kept(NamedTuple):
    """An accumulator with the rows of a table that keep it.

    Args:
        accumulator: what is kept.
        rows: their indices, ascending.
        options: what a store needs to know of each row.
    """

    accumulator: Accumulator
    rows: tuple[int, ...]
    options: Mapping[int, Any] = {}
