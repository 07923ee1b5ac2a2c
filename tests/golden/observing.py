"""What one process does in a set-up: its warnings, its lines on the terminal, the hooks in each step and the rows of tables."""

from __future__ import annotations

import io
import logging
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any
from unittest.mock import patch

from torch import nn

from lightning_hooks.stats.table import Table

ROOT = Path(__file__).parents[2]
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "_post_accumulate_grad_hooks")
_hooks: dict[str, dict[str, int]] = {}


def observe(function: Callable[[Path], None], folder: Path) -> dict[str, Any]:
    """Call a function that trains, and return what happened as plain data.

    Args:
        function: is called with the folder into which it writes.
        folder: empty, or new.
    """
    warned: list[str] = []
    rows: list[int] = []
    _hooks.clear()
    folder.mkdir(parents=True, exist_ok=True)
    terminal, logged = io.StringIO(), _Logged()
    with _warnings_of_ours(warned), _rows_of_tables(rows), redirect_stderr(terminal), logged:
        function(folder)
    return {
        "warnings": [normal(each, folder) for each in warned],
        "terminal": _unwrapped(normal(terminal.getvalue(), folder)),
        "logged": [normal(each, folder) for each in logged.lines],
        "hooks": {step: {**hooks} for step, hooks in _hooks.items()},
        "rows": rows,
    }


def count_hooks(model: nn.Module, step: str) -> None:
    """Note the number of hooks on each module and parameter. Call it after the forward pass of a step.

    A step that runs again, as an autopsy does, is not counted again.
    """
    owners = [*model.named_modules(), *model.named_parameters()]
    counts = {name: sum(len(getattr(owner, kind, None) or ()) for kind in _HOOKS) for name, owner in owners}
    _hooks.setdefault(step, {name: count for name, count in counts.items() if count})


def normal(text: str, folder: Path) -> str:
    """A text without what differs from run to run: folders, addresses, shares of time and lines of this package's tests."""
    # Replace the folder of the run first, which can lie within the others.
    for path, name in ((folder.resolve(), "<run>"), (folder, "<run>"), (ROOT, "<root>"), (Path(sys.prefix), "<env>")):
        # Markdown has a backslash before each underscore.
        text = text.replace(str(path), name).replace(str(path).replace("_", r"\_"), name)
    text = re.sub(r"(\.py):\d+", r"\1:<line>", text)
    text = re.sub(r"0x[0-9a-f]{6,}", "<address>", text)
    return re.sub(r"events\.out\.tfevents\.[\w.-]+", "<events>", text)


def _unwrapped(text: str) -> list[str]:
    """The lines of a terminal, each joined with its indented continuation: the width of a folder decides where lines break."""
    return [" ".join(block.split()) for block in re.split(r"\n(?! )", text) if block]


class _Logged(logging.Handler):
    """Collects what this package logs through the loggers of Lightning and through its own."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning_hooks")]

    def __enter__(self) -> None:
        for logger in self._loggers:
            logger.addHandler(self)

    def __exit__(self, *error: object) -> None:
        for logger in self._loggers:
            logger.removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        if "lightning_hooks" in Path(record.pathname).parts:
            self.lines.append(f"{record.levelname}: {record.getMessage()}")


@contextmanager
def _warnings_of_ours(warned: list[str]) -> Iterator[None]:
    """Collect the warnings that this package gives, whatever filters are set, and ignore those of other packages."""
    warn = warnings.warn

    def note(message: Any, category: Any = None, stacklevel: int = 1, **options: Any) -> None:
        if sys._getframe(1).f_globals.get("__name__", "").partition(".")[0] == "lightning_hooks":
            warned.append(f"{getattr(category, '__name__', 'UserWarning')}: {message}")
        else:
            warn(message, category, stacklevel + 1, **options)

    with warnings.catch_warnings(), patch("warnings.warn", note):
        warnings.simplefilter("ignore")
        yield


@contextmanager
def _rows_of_tables(rows: list[int]) -> Iterator[None]:
    """Collect the number of rows of every table that is constructed."""
    construct = Table.__init__

    def note(self: Table, count: int, *args: Any, **options: Any) -> None:
        rows.append(count)
        construct(self, count, *args, **options)

    with patch.object(Table, "__init__", note):
        yield
