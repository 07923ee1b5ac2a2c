"""The fenced blocks of a page of Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Args:
        language: the word behind the fence; empty without one.
        text: what stands between the fences.
        start: where the text begins in the page.
    """

    language: str
    text: str
    start: int


def blocks(page: str) -> list[Block]:
    """The blocks of a page in their order.

    Example:
        >>> blocks("```python\\n1 + 1\\n```\\n")
        [Block(language='python', text='1 + 1\\n', start=10)]
    """
    fences = re.finditer(r"^```([\w-]*)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    return [Block(fence[1], fence[2], fence.start(2)) for fence in fences]


def with_texts(page: str, texts: Sequence[tuple[Block, str]]) -> str:
    """The page with other texts in some of its blocks."""
    for block, text in sorted(texts, key=lambda each: each[0].start, reverse=True):
        page = page[: block.start] + text + page[block.start + len(block.text) :]
    return page
