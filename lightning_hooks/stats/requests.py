"""The requests of a rank, on which all ranks act at the same step. `Sections.requests` says where a table's state has them.

Ranks are merged by the greatest number of each element. The checksums come first, then a factor for each owner of the table,
then whether each owner is to stop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from torch import Tensor

NEGATED_FACTS: Final = 0
"""The index among the requests of the negated checksum of the facts of a step."""
FACTS: Final = 1
"""The index among the requests of the checksum of the facts of a step. The facts of ranks are equal if the greatest checksum
is the least one."""
_OF_OWNERS: Final = 2


def length(owners: int) -> int:
    """The number of elements for a table with so many owners."""
    return _OF_OWNERS + 2 * owners


def factors(owners: int) -> slice:
    """Where the requests have the factor by which each owner requests its intervals to grow."""
    return slice(_OF_OWNERS, _OF_OWNERS + owners)


def stops(owners: int) -> slice:
    """Where the requests have 1.0 for each owner that requests to stop, else 0.0."""
    return slice(_OF_OWNERS + owners, _OF_OWNERS + 2 * owners)


def write_requests(requests: Tensor, stop: Sequence[bool], factor: Sequence[int], facts: int) -> None:
    """Write the requests of a rank into the state of its table, without waiting for a device.

    Args:
        requests: the elements of the state, float64; written.
        stop: for each owner, whether it is to stop.
        factor: for each owner, the factor by which its intervals are to grow.
        facts: the checksum of the facts of the step.
    """
    for where, values in ((stops(len(stop)), stop), (factors(len(factor)), factor)):
        for position, value in zip(range(where.start, where.stop), values, strict=True):
            requests[position] = float(value)
    requests[FACTS], requests[NEGATED_FACTS] = float(facts), -float(facts)
