"""The new names of what is recorded under an old one, and the differences that are intended."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Kind = Literal["exact", "prefix", "pattern"]


@dataclass(frozen=True)
class Rename:
    """How an old name or text reads now.

    Args:
        old: the whole text, its beginning, or a regular expression that is searched in it.
        new: what takes its place; for an expression as of `re.sub`.
        kind: how `old` is read.
        under: the first keys of the places where it holds, such as `events/tables`; everywhere by default. Of a place these are
            separated by slashes, so `events/values/.` is the event file in the folder of the run.

    Example:
        >>> Rename("watch/hooks/", "watch/run/", "prefix")("watch/hooks/loss")
        'watch/run/loss'
    """

    old: str
    new: str
    kind: Kind = "exact"
    under: str = ""

    def __call__(self, text: str) -> str:
        if self.kind == "pattern":
            return re.sub(self.old, self.new, text)
        if self.kind == "prefix":
            return self.new + text[len(self.old) :] if text.startswith(self.old) else text
        return self.new if text == self.old else text


@dataclass(frozen=True)
class Accepted:
    """A difference that is intended.

    Args:
        setup: the name of the set-up.
        place: a regular expression that is searched in the place of the difference, its new name if it has one.
        reason: the defect that was mended, or what was decided.
    """

    setup: str
    place: str
    reason: str


# They are applied in order to every key, row, tag, path and text of the record.
RENAMES: tuple[Rename, ...] = ()
ACCEPTED: tuple[Accepted, ...] = ()
