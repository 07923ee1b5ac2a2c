"""The options of a rule for the units of a row."""

from __future__ import annotations

from typing import NamedTuple


class UnitSpec(NamedTuple):
    """The measurement of the units of a row.

    Args:
        axis: the dimension of the units; None to determine it from the class of the module.
        heads: the number of groups into which neighbouring units are merged; None to merge none.
        vectors: whether step views and event files hold numbers of every unit.
        is_written: whether a user asked for units, who is then warned if they cannot be measured.
    """

    axis: int | None = None
    heads: int | None = None
    vectors: bool = False
    is_written: bool = True

    def joined(self, other: UnitSpec) -> UnitSpec:
        """The measurement that serves this and another request with the same dimension and heads."""
        return self._replace(vectors=self.vectors or other.vectors, is_written=self.is_written or other.is_written)
