"""Texts for a language model: how many tokens they are at most, and which lines are left out so that they fit."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from lightning_hooks.errors import counted, shortened

_WORD: Final = re.compile(r"[A-Za-z]+|[0-9]|[^\sA-Za-z0-9]")
_LETTERS: Final = 4
"""Letters of a word that are counted as one token. Tokenizers of language models take common words as a whole."""
_LONGEST: Final = 600  # characters of a line


class Line(NamedTuple):
    """A line of a text.

    Args:
        text: one line of Markdown.
        rank: 0 if it is never left out; lines of the highest rank are left out first.
    """

    text: str
    rank: int = 0


class Section(NamedTuple):
    """A title and its lines; without lines, the title is left out too."""

    title: str
    lines: Sequence[Line]


def tokens(text: str) -> int:
    """How many tokens a text has, counted rather too high: each digit, sign and four letters of a word are one.

    Example:
        >>> tokens("encoder.0.weight is dead"), tokens("lr 0.1")
        (9, 4)
    """
    return sum(
        1 if len(word) == 1 and word.isascii() else -(-len(word) // _LETTERS) if word.isascii() else len(word.encode())
        for word in _WORD.findall(text)
    )


def text_within(sections: Sequence[Section], limit: int, rest: str) -> str:
    """The sections as Markdown, without their least important lines if they are too long.

    Args:
        sections: in the order of the text.
        limit: the most tokens.
        rest: how to read what is left out; it ends the last line if something is.

    Example:
        >>> print(text_within([Section("# A run", [Line("It is sick."), Line("So it is. " * 20, 1)])], 40, "see all"))
        # A run
        <BLANKLINE>
        It is sick.
        <BLANKLINE>
        Left out to fit into 40 tokens: 1 line; see all.
    """
    kept = [Section(title, [line._replace(text=shortened(line.text, _LONGEST)) for line in lines]) for title, lines in sections]
    gone = 0
    while True:
        note = f"\n\nLeft out to fit into {limit:,} tokens: {counted(gone, 'line')}; {rest}." if gone else ""
        text = _joined(kept) + note
        last = max((line.rank for section in kept for line in section.lines), default=0)
        if tokens(text) <= limit:
            return text
        if last == 0:
            return _cut(text, limit, rest)
        at = max(index for index, section in enumerate(kept) if any(line.rank == last for line in section.lines))
        lines = [*kept[at].lines]
        del lines[max(index for index, line in enumerate(lines) if line.rank == last)]
        kept[at] = Section(kept[at].title, lines)
        gone += 1


def _joined(sections: Sequence[Section]) -> str:
    parts = ["\n".join([section.title, "", *(line.text for line in section.lines)]) for section in sections if section.lines]
    return "\n\n".join(parts)


def _cut(text: str, limit: int, rest: str) -> str:
    """The beginning of a text that is too long even without the lines that can be left out."""
    end = f" …\n\nThe rest is left out to fit into {limit:,} tokens; {rest}."
    while text and tokens(text + end) > limit:
        text = text[: -max(len(text) // 50, 1)]
    return text + end
