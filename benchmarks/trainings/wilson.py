"""Wilson's interval of a share, with 95 % confidence."""

from __future__ import annotations

import math
from typing import Final

_Z: Final = 1.959963984540054


def wilson(count: int, total: int) -> tuple[float, float]:
    """The interval in which the share lies of which `count` of `total` were seen.

    Example:
        >>> low, high = wilson(0, 100)
        >>> low, round(high, 4)
        (0.0, 0.037)
    """
    if not total:
        return 0.0, 1.0
    share, square = count / total, _Z**2 / total
    middle = share + square / 2
    half = _Z * math.sqrt(share * (1 - share) / total + square / (4 * total))
    return max(0.0, (middle - half) / (1 + square)), min(1.0, (middle + half) / (1 + square))


def per_thousand(count: int, total: int) -> str:
    """A share in words: how many of a thousand, with its interval.

    Example:
        >>> per_thousand(1, 200)
        '5.0 (0.9 to 27.8)'
    """
    low, high = wilson(count, total)
    return f"{1000 * count / max(total, 1):.1f} ({1000 * low:.1f} to {1000 * high:.1f})"


def percent(count: int, total: int) -> str:
    """A share in words: `3 of 4 (75 %)`; `–` of nothing."""
    return f"{count} of {total} ({100 * count / total:.0f} %)" if total else "–"
