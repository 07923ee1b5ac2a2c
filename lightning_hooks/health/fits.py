"""The fits of a folder: they follow each other in one journal, and those that ran at the same time have numbered ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from lightning_hooks.errors import RuleError
from lightning_hooks.health.finding import Event
from lightning_hooks.untrusted import parse_json


class Fit(NamedTuple):
    """A fit that wrote into a journal.

    Args:
        began: seconds since 1970.
        journal: its file.
        events: in order, its `begin` first if it has one.
        is_last: whether no other fit wrote into the journal after it, so that the summary beside the journal may be its own.
    """

    began: float
    journal: Path
    events: list[Event]
    is_last: bool


def journals_beside(path: Path) -> list[Path]:
    """A journal and the numbered ones beside it, as far as they exist.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> for name in ("findings.jsonl", "findings-2.jsonl", "findings-old.jsonl"):
        ...     _ = (folder / name).write_text("")
        >>> [journal.name for journal in journals_beside(folder / "findings.jsonl")]
        ['findings.jsonl', 'findings-2.jsonl']
    """
    others = [other for other in path.parent.glob(f"{path.stem}-*{path.suffix}") if _number(path, other).isdecimal()]
    return [*filter(Path.exists, [path]), *sorted(others, key=lambda other: int(_number(path, other)))]


def _number(path: Path, other: Path) -> str:
    return other.stem.removeprefix(f"{path.stem}-")


def events_in(content: bytes, ignored: Callable[[int, str], None] | None = None) -> list[Event]:
    """The events of a journal.

    Args:
        content: of the file.
        ignored: called with the number of each damaged line and the reason.
    """
    events = []
    for number, line in enumerate(content.splitlines(), 1):
        if not line.strip():
            continue
        try:
            events.append(Event.from_dict(parse_json(line)))
        except RuleError as error:
            if ignored is not None:
                ignored(number, str(error))
    return events


def fits_in(journals: Iterable[tuple[Path, Sequence[Event]]]) -> list[Fit]:
    """The fits of several journals, in the order in which they began.

    Args:
        journals: each file with its events. A file without a mark has one fit.

    Raises:
        OSError: a file is no longer there.
    """
    return sorted((fit for journal, events in journals for fit in _split(journal, events)), key=lambda fit: fit.began)


def _split(journal: Path, events: Sequence[Event]) -> list[Fit]:
    begins = [index for index, event in enumerate(events) if event.kind == "begin"]
    bounds = [*(begins or [0]), len(events)]
    # The fits of one file follow each other, whatever the clock said. A mark of an earlier version of this package has no time.
    later = journal.stat().st_mtime
    fits: list[Fit] = []
    for start, end in reversed([*pairwise(bounds)]):
        own = [*events[start:end]]
        if own and own[0].time is not None:
            later = min(later, own[0].time)
        fits.append(Fit(later, journal, own, is_last=not fits))
    return fits[::-1]
