"""The command `lightning-hooks explain`: the page of a rule, cause, check or error, or a list of all of them."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterator
from typing import Final

from lightning_hooks.cli.options import Parser
from lightning_hooks.explained import Page, page_of, pages
from lightning_hooks.explained.pages import KINDS

_DESCRIPTION: Final = """\
Print what a health rule, a cause, a check or an error means: why it harms, how it is judged, what to do, and when it is a
false alarm. Without a name, list all names with one line each."""
_GROUPS: Final = {
    "rule": "Health rules: a HealthMonitor looks for these while a run goes",
    "cause": "Causes: what several findings together point to",
    "check": "Checks: `lightning-hooks check` looks for these on one batch",
    "comparison": "Comparisons with good runs: HealthMonitor(reference=...) and `lightning-hooks compare`",
    "error": "Errors that the package raises",
}
_WIDEST: Final = 110  # characters
_NARROWEST: Final = 40  # characters


def explain(arguments: list[str]) -> None:
    """Print one page, or the list of all pages."""
    parser = Parser("explain", _DESCRIPTION)
    parser.add_argument("name", metavar="NAME", nargs="?", help="for example DeadUnits; upper and lower case are the same")
    name = parser.parse_args(arguments).name
    width = min(_WIDEST, max(_NARROWEST, shutil.get_terminal_size((_WIDEST, 24)).columns))
    if name is None:
        # A line is cut only where somebody reads it: `lightning-hooks explain | grep loss` finds whole sentences.
        print("\n".join(_list(width if sys.stdout.isatty() else None)))
    else:
        print("\n".join(_lines(page_of(name), width)))


def _list(width: int | None) -> Iterator[str]:
    longest = max(map(len, pages()))
    for kind in KINDS:
        yield from (f"{_GROUPS[kind]}:", "")
        for page in pages().values():
            if kind in page.kinds:
                line = f"  {page.name:<{longest}}  {page.summary}"
                yield line if width is None or len(line) <= width else f"{line[: width - 1].rstrip()}…"
        yield ""
    yield "lightning-hooks explain NAME prints the page of one of them."


def _lines(page: Page, width: int) -> Iterator[str]:
    yield f"{page.name} ({', '.join(page.kinds)})"
    for section in page.sections:
        yield from ("", section.title)
        for number, paragraph in enumerate(section.paragraphs):
            yield from [""] * (number > 0)
            yield from _wrapped(paragraph, "  ", "  ", width)
        for point in section.points:
            yield from _wrapped(point, "  - ", "    ", width)


def _wrapped(text: str, first: str, later: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, initial_indent=first, subsequent_indent=later, break_on_hyphens=False)
