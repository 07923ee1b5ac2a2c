"""The requests of a rank, on which all ranks act at the same step. `Sections.requests` says where a table's state has them.

Ranks are merged by the greatest number of each element.
"""

from __future__ import annotations

from typing import Final

NEGATED_FACTS: Final = 0
"""The index among the requests of the negated checksum of the facts of a step."""
FACTS: Final = 1
"""The index among the requests of the checksum of the facts of a step. The facts of ranks are equal if the greatest checksum
is the least one."""
FACTOR: Final = 2
"""The index among the requests of the factor by which a rank requests intervals to grow."""
STOP: Final = 3
"""The index among the requests of 1.0 if a rank requests to stop, else 0.0."""
REQUESTS: Final = 4
"""The number of these elements."""
