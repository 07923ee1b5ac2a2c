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
RENAMES: tuple[Rename, ...] = (
    # The folder of the set-up `hugging_face` is hooks/run_0.
    Rename(r"(?<![a-z])hooks/(?!run_)(?=[a-z(])", "run/", "pattern"),
    Rename(r"^(watch|watch/health|second|before|after)/hooks$", r"\1/run", "pattern", under="events/values"),
)
_BESIDE = "beside a StatsMonitor, a HealthMonitor asks for what that does not watch, in a plain loop as in a Trainer"
_TOLD = "a plain loop warns, as a Trainer does, that rows are merged because of max_scalars"
_LOOPS = {"loop": "run_0", "hugging_face": "hooks/run_0"}
_HARM = "a finding says with which tensors and harm it was found, and a symptom whether it is a fact"
_DROPOUT = "DropoutTooHigh looks at inputs too, so that it runs in a model without a dropout"
_BLOCKS = "a block quotes a symptom of each row and tensor, and the source of a threshold as it is"
_JUDGED = (
    *("health", "recorder", "own_watch", "two_monitors", "stages", "accumulation", "compiled", "ddp"),
    *_LOOPS,
)
ACCEPTED: tuple[Accepted, ...] = (
    *(Accepted(setup, rf"^events/values/{folder}/watch/run/rules/0$", _BESIDE) for setup, folder in _LOOPS.items()),
    *(
        Accepted(setup, rf"^events/values/{folder}/table/index/train/0/rows/.*/requests", _BESIDE)
        for setup, folder in _LOOPS.items()
    ),
    *(Accepted(setup, r"^processes/0/warnings/[01]$", _TOLD) for setup in _LOOPS),
    *(Accepted(setup, r"/(is_fact|tensors/\d+|harm)$", _HARM) for setup in _JUDGED),
    *(Accepted(setup, r"/(ran/\d+|could_not_run/DropoutTooHigh|line)$", _DROPOUT) for setup in _JUDGED),
    *(Accepted(setup, r"^processes/\d+/terminal/\d+$", _BLOCKS) for setup in _JUDGED),
)
