"""The text before every tag of this package, by which the charts of the user's own logs stay apart."""

from __future__ import annotations

from typing import Final

ROOT: Final = "watch/"
"""The default prefix of scalars, histograms, texts and images."""


def name_of(prefix: str) -> str:
    """The prefix by which tables and step views know a monitor: without `watch/`, because no chart shows them.

    Example:
        >>> name_of("watch/"), name_of("watch/health/"), name_of("mine/")
        ('', 'health/', 'mine/')
    """
    return prefix.removeprefix(ROOT)
