"""The accumulators of the package: the kinds of numbers that a table keeps of its rows.

To add a kind, add a file in this folder and a line in `BUILT_IN`.
"""

from __future__ import annotations

from typing import Final

from lightning_hooks.stats.accumulators.base import Accumulator, AccumulatorRows, History
from lightning_hooks.stats.accumulators.histogram import Histogram
from lightning_hooks.stats.accumulators.moments import Moments
from lightning_hooks.stats.accumulators.pairs import Pairs
from lightning_hooks.stats.accumulators.units import Units

__all__ = ["BUILT_IN", "MOMENTS", "Accumulator", "History", "AccumulatorRows"]

MOMENTS: Final = Moments()
BUILT_IN: Final[tuple[Accumulator, ...]] = (MOMENTS, Histogram(), Pairs(), Units())
"""The accumulators whose statistics a rule requests by name. Every row keeps the first. It keeps another accumulator if a rule
requests one of its statistics."""
