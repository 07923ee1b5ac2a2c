"""The tables of the pages that the galleries write."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown. A bar or a new line inside of a cell would end it, so another character takes its place.

    Example:
        >>> print(table(["fault", "said"], [["nan|inf", "two\\nlines"]]))
        | fault | said |
        | --- | --- |
        | nan/inf | two lines |
    """
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/').replace(chr(10), ' ') for cell in line)} |" for line in lines)
