"""A progress bar on standard error for commands that take longer than two seconds."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

_AFTER: Final = 2.0  # seconds until the bar appears

Progress = Callable[[int, int], None]
"""Called with the number of things that are done, and of all things; 0 if the latter is not known."""


def silent(done: int, total: int) -> None:
    """Show nothing."""


@contextmanager
def progress_bar(doing: str) -> Iterator[Progress]:
    """A progress bar that appears after two seconds and is gone in the end.

    It needs `rich`, and a terminal as standard error. Without them nothing is shown.

    Args:
        doing: the text beside the bar.
    """
    if not _is_terminal(sys.stderr):
        yield silent
        return
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar
    except ImportError:
        yield silent
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Bar(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task(doing, total=None)
    # Start the bar from a timer: reading the index of a large run may take seconds before the first step is read.
    timer = threading.Timer(_AFTER, bar.start)
    timer.daemon = True
    timer.start()
    try:
        yield lambda done, total: bar.update(task, completed=done, total=total if total >= done else None)
    finally:
        timer.cancel()
        timer.join()
        bar.stop()


def _is_terminal(stream: Any) -> bool:
    return stream is not None and stream.isatty()
