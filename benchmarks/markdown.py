"""The small change of the report: a table, and a target beside a value."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table in Markdown.

    Example:
        >>> print(table(["a", "b"], [[1, "x"]]))
        | a | b |
        |---|---|
        | 1 | x |
    """
    lines = [columns, ["---"] * len(columns), *rows]
    drawn = ["| " + " | ".join(str(cell) for cell in line) + " |" for line in lines]
    drawn[1] = "|" + "---|" * len(columns)
    return "\n".join(drawn)


def met(value: float, target: float | None, least: bool = False, interval: tuple[float, float] | None = None) -> str:
    """The target and whether a value keeps it.

    Args:
        value: what was measured.
        target: the greatest, or the least.
        least: whether it is the least.
        interval: in which the value may lie; where the target is within it too, the measurement does not decide.

    Example:
        >>> met(1.1, 1.12), met(1.2, 1.12), met(40.0, 30.0, least=True), met(1.0, None)
        ('≤ 1.12, met', '≤ 1.12, **missed**', '≥ 30, met', '–')
        >>> met(1.2, 1.12, interval=(1.11, 1.3)), met(1.1, 1.12, interval=(1.09, 1.11))
        ('≤ 1.12, open', '≤ 1.12, met')
    """
    if target is None or math.isnan(value):
        return "–"
    low, high = interval or (value, value)
    is_met = low >= target if least else high <= target
    is_missed = high < target if least else low > target
    return f"{'≥' if least else '≤'} {target:g}, {'met' if is_met else '**missed**' if is_missed else 'open'}"
