"""A program in a pseudo-terminal, and what a person then sees: every line of the screen and of what has scrolled off it."""

from __future__ import annotations

import os
import re
import struct
import subprocess
import unicodedata
from pathlib import Path

ROOT = Path(__file__).parents[2]
_SEQUENCE = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])|.|\n|\r", re.DOTALL)
_OVERRIDES = ("COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")


def run_in_terminal(command: list[str], columns: int, lines: int = 24) -> str:
    """Run a program with a terminal as its input and output; returns all that it wrote there."""
    import fcntl  # Windows has none of these modules.
    import pty
    import termios

    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    process = subprocess.Popen(command, stdin=its, stdout=its, stderr=its, cwd=ROOT, env=plain_environment())
    os.close(its)
    chunks = []
    while chunk := _read(ours):
        chunks.append(chunk)
    os.close(ours)
    output = b"".join(chunks).decode()
    assert process.wait() == 0, output
    return output


def plain_environment() -> dict[str, str]:
    """The environment without what tells programs another size of the terminal, or whether to use colours."""
    kept = {name: value for name, value in os.environ.items() if name not in _OVERRIDES}
    return {**kept, "TERM": "xterm-256color"}


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # Linux reports the end of the output of the last process as an error.
        return b""


class Screen:
    """A terminal: wraps at its last column, scrolls, and moves the cursor as it is told.

    Args:
        columns: the number of characters in a line.
        lines: the number of lines that the cursor can reach.
    """

    def __init__(self, columns: int, lines: int = 24) -> None:
        self._columns, self._height = columns, lines
        self._cells: list[list[str]] = [[]]
        self._row = self._column = 0

    def feed(self, output: str) -> Screen:
        """Show what a program writes; returns the screen itself."""
        for match in _SEQUENCE.finditer(output):
            arguments, command = match.groups()
            if command is not None:
                self._obey(command, arguments)
            elif match[0] == "\r":
                self._column = 0
            elif match[0] == "\n":
                self._down()
            else:
                self._put(match[0])
        return self

    @property
    def text(self) -> list[str]:
        """All lines, without spaces at their ends."""
        return ["".join(cells).rstrip() for cells in self._cells]

    def _obey(self, command: str, arguments: str) -> None:
        if command == "A":
            top = max(len(self._cells) - self._height, 0)
            self._row = max(self._row - int(arguments or 1), top)
        elif command == "K":
            cells = self._cells[self._row]
            begin, end = {"": (self._column, len(cells)), "0": (self._column, len(cells)), "2": (0, len(cells))}[arguments]
            cells[begin:end] = [" "] * (end - begin)
        else:  # colours, and whether the cursor is visible
            assert command == "m" or arguments == "?25", f"the test terminal does not know \\e[{arguments}{command}"

    def _put(self, character: str) -> None:
        assert character.isprintable(), f"the test terminal does not know {character!r}"
        width = 2 if unicodedata.east_asian_width(character) in "WF" else 1
        if self._column + width > self._columns:
            self._column = 0
            self._down()
        cells = self._cells[self._row]
        cells += [" "] * (self._column + width - len(cells))
        cells[self._column : self._column + width] = [character, *[""] * (width - 1)]
        self._column += width

    def _down(self) -> None:
        self._row += 1
        if self._row == len(self._cells):
            self._cells.append([])
