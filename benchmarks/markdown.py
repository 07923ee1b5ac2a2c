"""The small change of the report: a table, and a target beside a value."""

from __future__ import annotations

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


def met(value: float, target: float | None, least: bool = False) -> str:
    """The target and whether a value keeps it.

    Example:
        >>> met(1.1, 1.12), met(1.2, 1.12), met(40.0, 30.0, least=True), met(1.0, None)
        ('≤ 1.12, met', '≤ 1.12, **missed**', '≥ 30, met', '–')
    """
    if target is None:
        return "–"
    kept = value >= target if least else value <= target
    return f"{'≥' if least else '≤'} {target:g}, {'met' if kept else '**missed**'}"
