"""The options of a command: one style of help, of placeholders and of errors for all commands. Loads nothing that is slow."""

from __future__ import annotations

import argparse
import shutil
import textwrap
from collections.abc import Mapping
from typing import Any, Final, NoReturn

from lightning_hooks.errors import printable, without_secrets

USAGE: Final = 2
"""The exit code of wrong options, of files that are missing or damaged, and of a run that cannot be judged."""


class Parser(argparse.ArgumentParser):
    """The parser of one command.

    A placeholder in its help is a noun in capitals, such as `RUN`. Its errors are one line and end the process with code 2.

    Args:
        command: the name of the command.
        description: what the command does, in paragraphs.
        codes: what the exit codes of the command mean, besides those that all commands have; empty to list none.
        options: as of `argparse.ArgumentParser`.
    """

    def __init__(self, command: str, description: str = "", codes: Mapping[int, str] | None = None, **options: Any) -> None:
        lines = [_wrapped(meaning, f"  {code}  ", " " * 5) for code, meaning in (codes or {}).items()]
        super().__init__(
            f"lightning-hooks {command}",
            description=_wrapped(description),
            epilog="\n".join(["exit codes:", *lines]) if lines else None,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            **options,
        )

    def error(self, message: str) -> NoReturn:
        """Print what is wrong in one line, and end with code 2."""
        self.exit(USAGE, f"{error_line(message)}; `{self.prog} --help` lists the options\n")


def error_line(message: str) -> str:
    r"""A message as every command prints an error.

    Example:
        >>> error_line("there is no run a\x1b[31m")
        'lightning-hooks: error: there is no run a\\x1b[31m'
    """
    return f"lightning-hooks: error: {printable(without_secrets(message), keep=chr(10))}"


def _wrapped(text: str, first: str = "", later: str = "") -> str:
    """The paragraphs of a text in lines that fit into the terminal, the first and the later ones with an indent."""
    # A terminal may be narrower than any word, and its size may be unknown.
    width = max(min(shutil.get_terminal_size().columns - 2, 110), 40)
    wrap = textwrap.TextWrapper(width, initial_indent=first, subsequent_indent=later, break_on_hyphens=False)
    return "\n\n".join(wrap.fill(" ".join(paragraph.split())) for paragraph in text.split("\n\n"))
