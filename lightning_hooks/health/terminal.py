"""Blocks and lines for a stream: as wide as the terminal and in colours, or plain text where it is no terminal."""

from __future__ import annotations

import shutil
from typing import Final, TextIO

from lightning_hooks.health.text import WIDTH, Block, as_rich, as_text, wrapped

_NARROWEST: Final = 40  # characters


def block_for(block: Block, stream: TextIO | None) -> str:
    """The lines of a block for a stream; in colours where the stream is a terminal and rich is installed."""
    if not is_terminal(stream):
        return as_text([block])
    text = as_rich(block, _width())
    if text is None:
        return as_text([block], _width())
    from rich.console import Console

    # Give rich the width: by default it takes the variable COLUMNS, and with COLUMNS=0 it prints nothing.
    console = Console(file=stream, width=_width(), force_jupyter=False)
    with console.capture() as captured:
        console.print(text, end="", soft_wrap=True)
    return captured.get()


def line_for(line: str, stream: TextIO | None) -> str:
    """A sentence for a stream: one line, but in a terminal as many as it takes."""
    return "\n".join(wrapped(line, later="  ", width=_width())) if is_terminal(stream) else line


def width_for(stream: TextIO | None) -> int:
    """The characters of a line for a stream: those of the terminal, within limits; the most where it is no terminal."""
    return _width() if is_terminal(stream) else WIDTH


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a stream says that it is a terminal. An object that somebody put in place of `sys.stdout` may not know."""
    # While rich draws a bar, `sys.stderr` is an object of rich that passes text on. In older versions of rich this object does
    # not say that it is a terminal, so ask the stream behind it.
    stream = getattr(stream, "rich_proxied_file", stream)
    is_terminal = getattr(stream, "isatty", None)
    return is_terminal is not None and bool(is_terminal())


def _width() -> int:
    return max(_NARROWEST, min(WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns))
