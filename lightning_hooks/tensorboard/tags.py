"""The names of the tags that this package writes into event files and reads from them, beside scalars and histograms."""

from __future__ import annotations

from typing import Final

PLUGIN: Final = "lightning_hooks"
TABLE: Final = "table"
ROWS: Final = "rows"
ABOUT: Final = "about"
INDEX: Final = "index"
FACTS: Final = "facts"
HISTOGRAMS: Final = "histograms"
WINDOW: Final = "window"
FOUND: Final = "findings"
"""Tags: `table/rows/…` holds lists of rows, `table/about/…` facts about rows, `table/index/…` row indices of step views,
`table/histograms/…` the histograms of the rows of a tensor, `table/window/…` the steps that an event merges, `findings/…` what
health rules have found."""


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


def histograms_tag(tensor: str, digest: str) -> str:
    """The tag under which an event file holds the histograms of the rows of a tensor.

    Args:
        tensor: with the monitor's prefix.
        digest: the hash of the list of rows.
    """
    return f"{TABLE}/{HISTOGRAMS}/{tensor}/{digest}"


def tensor_of_histograms(tag: str) -> str | None:
    """The tensor, with the monitor's prefix, of a tag of `histograms_tag`; None for another tag.

    Example:
        >>> tensor_of_histograms("table/histograms/val/output/59900c43"), tensor_of_histograms("table/grad/norm/59900c43")
        ('val/output', None)
    """
    tensor, slash, _ = tag.removeprefix(f"{TABLE}/{HISTOGRAMS}/").rpartition("/")
    return tensor if slash and tag.startswith(f"{TABLE}/{HISTOGRAMS}/") else None
