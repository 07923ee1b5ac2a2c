"""What a step must offer to be written; the statistics have a class that does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Series(Protocol):
    """One statistic of one tensor for all its rows."""

    @property
    def tensor(self) -> str:
        """What is seen: `grad`, `output[0]`, and the like."""

    @property
    def stat(self) -> str:
        """What is computed: `norm`, `p99`, or `count`."""

    @property
    def names(self) -> tuple[str, ...]:
        """Dotted names of the rows; the same object at every step."""

    @property
    def values(self) -> NDArray[np.float64]:
        """One value a row, NaN where nothing was measured."""


class Head(Protocol):
    """What one statistic of one tensor is called, and where its values lie."""

    @property
    def stat(self) -> str:
        """What is computed."""

    @property
    def place(self) -> slice:
        """In the values of all."""


class Columns(Protocol):
    """All series in one array."""

    @property
    def heads(self) -> Sequence[Head]:
        """One for each series; the same object at every step with the same series."""

    @property
    def values(self) -> NDArray[np.float64]:
        """Those of all series, one after the other."""

    @property
    def measured(self) -> NDArray[np.bool_]:
        """Which of these there are."""


class RolledUp(Protocol):
    """Merged rows in one array."""

    @property
    def tags(self) -> tuple[str, ...]:
        """Without prefix; most often the same object at every step."""

    @property
    def numbers(self) -> NDArray[np.float64]:
        """One for each."""


class Histograms(Protocol):
    """All histograms in one array."""

    @property
    def tags(self) -> Sequence[str]:
        """Whole tags."""

    @property
    def counts(self) -> NDArray[np.float64]:
        """Elements in each bucket [tags, buckets]."""


class Record(Protocol):
    """What one step logs."""

    @property
    def step(self) -> int:
        """The x-axis."""

    @property
    def wall_time(self) -> float:
        """When it ended, in seconds since 1970; 0 for now."""

    @property
    def prefix(self) -> str:
        """Put before every tag."""

    @property
    def series(self) -> Sequence[Series]:
        """The table form."""

    @property
    def columns(self) -> Columns:
        """The table form in one array."""

    @property
    def scalars(self) -> Mapping[str, float]:
        """The scalar form: whole tags."""

    @property
    def rolled_up(self) -> Mapping[str, float] | None:
        """The rows in the scalar form, without prefix, where they are merged; None where every measured row stands there."""

    @property
    def merged(self) -> RolledUp | None:
        """The same in one array."""

    @property
    def summaries(self) -> Mapping[str, float]:
        """The global numbers in the scalar form, without prefix."""

    @property
    def histograms(self) -> Sequence[tuple[str, NDArray[np.float64]]]:
        """Whole tags and their counts."""

    @property
    def drawn(self) -> Histograms:
        """The histograms in one array."""

    @property
    def bucket_limits(self) -> NDArray[np.float64]:
        """Right edges of the buckets, ascending."""
