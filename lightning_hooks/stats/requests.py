"""Requests: what one rank decides alone and all act on at the same step. They are the last elements of a table's state."""

from __future__ import annotations

from typing import Final

FACTOR: Final = -2  # the index of the factor by which a rank wants intervals to grow
STOP: Final = -1  # the index of whether a rank wants to stop
REQUESTS: Final = 2  # how many there are
