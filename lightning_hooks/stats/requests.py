"""The requests of a rank, on which all ranks act at the same step. They are the last elements of a table's state."""

from __future__ import annotations

from typing import Final

FACTOR: Final = -2
"""The index in the state of the factor by which a rank requests intervals to grow."""
STOP: Final = -1
"""The index in the state of 1.0 if a rank requests to stop, else 0.0."""
REQUESTS: Final = 2
"""The number of requests."""
