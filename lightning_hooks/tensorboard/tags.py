"""The names of the tags that this package writes into event files and reads from them, beside scalars and histograms."""

from __future__ import annotations

from typing import Final

PLUGIN: Final = "lightning_hooks"
TABLE: Final = "table"
ROWS: Final = "rows"
ABOUT: Final = "about"
INDEX: Final = "index"
FACTS: Final = "facts"
FOUND: Final = "findings"
"""Tags: `table/rows/…` holds lists of rows, `table/about/…` facts about rows, `table/index/…` row indices of step views,
`findings/…` what health rules have found."""


def is_table(tag: str) -> bool:
    """Whether a tag can be the tag of a vector of a table: `table/…` with at least three slashes."""
    return tag.startswith(f"{TABLE}/") and tag.count("/") >= 3


def table_of(tag: str) -> tuple[str, str]:
    """The tensor, with the monitor's prefix, and the statistic of a vector's tag.

    Example:
        >>> table_of("table/my/prefix/grad/norm/59900c43")
        ('my/prefix/grad', 'norm')
    """
    # The prefix of a monitor may contain slashes, so split the tag from the right.
    tensor, stat, _ = tag.rsplit("/", 2)
    return tensor.removeprefix(f"{TABLE}/"), stat
