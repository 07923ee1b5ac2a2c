"""What a rule asks of the units of a row."""

from __future__ import annotations

from typing import NamedTuple


class UnitSpec(NamedTuple):
    """How the units of a row are measured.

    Args:
        axis: the dimension of the units; None to find it by the class of the module.
        heads: into how many groups of neighbouring units they are merged; None for none.
        vectors: whether step views and event files have a number for each unit.
    """

    axis: int | None = None
    heads: int | None = None
    vectors: bool = False
