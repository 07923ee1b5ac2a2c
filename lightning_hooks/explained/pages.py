"""`Page`: what a rule, cause, check or error means, in sections."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from lightning_hooks.errors import RuleError, did_you_mean, shown

PATH: Final = Path(__file__).with_name("pages.json")
"""The file of all pages, which is a part of the package."""
KINDS: Final = ("rule", "cause", "check", "comparison", "error")
TITLES: Final = (
    "What is meant",
    "Why it harms",
    "How it is judged",
    "What to do",
    "When it is a false alarm",
    "Accept or switch off",
)
"""The sections of each page, in this order."""


@dataclass(frozen=True)
class Section:
    """One section of a page.

    Args:
        title: one of `TITLES`.
        paragraphs: whole sentences, each paragraph on its own.
        points: the entries of a list behind the paragraphs.
    """

    title: str
    paragraphs: tuple[str, ...] = ()
    points: tuple[str, ...] = ()


@dataclass(frozen=True)
class Page:
    """The page of one name. A rule, a check and a cause of one name look for the same fault, and share a page.

    Args:
        name: for example `DeadUnits`.
        kinds: some of `KINDS`.
        family: the subject, for a list: the family of a rule; empty for other kinds.
        summary: the first sentence.
        sections: one for each of `TITLES`.
    """

    name: str
    kinds: tuple[str, ...]
    family: str
    summary: str
    sections: tuple[Section, ...]


@lru_cache(maxsize=1)
def pages() -> Mapping[str, Page]:
    """All pages by name.

    Example:
        >>> pages()["DeadUnits"].kinds
        ('rule',)
    """
    found = json.loads(PATH.read_text(encoding="utf-8"))
    return {each["name"]: _as_page(each) for each in found}


def _as_page(values: Mapping[str, Any]) -> Page:
    sections = tuple(
        Section(each["title"], tuple(each.get("paragraphs", ())), tuple(each.get("points", ()))) for each in values["sections"]
    )
    return Page(values["name"], tuple(values["kinds"]), values["family"], values["summary"], sections)


def as_json(all_pages: Mapping[str, Page]) -> str:
    """The text of `pages.json`: one line for each sentence or point, so that a change of one text is a change of one line."""
    plain = [asdict(page) for page in all_pages.values()]
    for page in plain:
        page["sections"] = [{key: value for key, value in each.items() if value} for each in page["sections"]]
    return json.dumps(plain, indent=1, ensure_ascii=False) + "\n"


def page_of(name: str) -> Page:
    """The page of a name, in whatever case it is written. A fingerprint such as `DeadUnits/encoder.*` stands for its rule.

    Raises:
        RuleError: there is no page of this name; the message has the nearest names.

    Example:
        >>> page_of("deadunits/encoder.*").name
        'DeadUnits'
    """
    wanted = name.strip().partition("/")[0].partition("@")[0].rstrip("<>+.,:")
    by_lower = {each.lower(): page for each, page in pages().items()}
    if wanted.lower() not in by_lower:
        # Lowercase letters are not spelled like uppercase ones, so compare names in one case.
        close = did_you_mean(wanted.lower(), by_lower)
        for lower, page in by_lower.items():
            close = close.replace(repr(lower), page.name)
        raise RuleError(
            f"there is no rule, cause, check or error {shown(name)}{close}; `lightning-hooks explain` lists all of them"
        )
    return by_lower[wanted.lower()]


def command_for(name: str) -> str:
    """The command that prints the page of a name; empty if there is none, as of a rule of the user's.

    Example:
        >>> command_for("DeadUnits"), command_for("MyRule")
        ('lightning-hooks explain DeadUnits', '')
    """
    return f"lightning-hooks explain {name}" if name in pages() else ""
