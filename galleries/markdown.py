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


def with_between(page: str, mark: str, text: str) -> str:
    """The page with another text between two marks.

    Args:
        page: it has the lines `<!-- mark -->` and `<!-- end of the mark -->`.
        mark: the name of the marks.
        text: takes the place of what is between them.

    Raises:
        ValueError: the page does not have both marks.

    Example:
        >>> print(with_between("<!-- costs -->\\nold\\n<!-- end of the costs -->", "costs", "new"))
        <!-- costs -->
        <BLANKLINE>
        new
        <BLANKLINE>
        <!-- end of the costs -->
    """
    begin, end = f"<!-- {mark} -->", f"<!-- end of the {mark} -->"
    before, has_begin, rest = page.partition(begin)
    _, has_end, after = rest.partition(end)
    if not (has_begin and has_end):
        raise ValueError(f"the page does not have {begin} and, behind it, {end}")
    return f"{before}{begin}\n\n{text}\n\n{end}{after}"
