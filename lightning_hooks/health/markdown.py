"""Findings and causes as Markdown, for TensorBoard's Text tab."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from lightning_hooks.errors import printable
from lightning_hooks.health.finding import Cause, Finding
from lightning_hooks.health.text import Block, blocks_of

_LINES: Final = 5  # the most lines of a text
_CODE: Final = re.compile("(`[^`]*`)")
# Markdown takes no underscore between letters or digits as emphasis. Leave it unescaped, so that names stay readable.
_SPECIAL: Final = re.compile(r"[\\*\[\]|]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")


def markdown_of(causes: Iterable[Cause], findings: Iterable[Finding]) -> str:
    """Causes and findings as Markdown, the worst first: one line each, of which there are at most five.

    Example:
        >>> markdown_of([], [])
        'Nothing was found.'
    """
    blocks = blocks_of(causes, [*findings])
    lines = [*map(_of_block, blocks if len(blocks) <= _LINES else blocks[: _LINES - 1])]
    if len(lines) < len(blocks):
        lines.append(f"- and {len(blocks) - len(lines)} more")
    return "\n".join(lines) or "Nothing was found."


# At most looks, most findings are those of the look before. Keep their text.
@lru_cache(maxsize=1024)
def _of_block(block: Block) -> str:
    name, _, rest = escaped(block.verdict).partition(". ")
    advice = f" **Next:** {escaped(block.next_steps[0])}" if block.next_steps else ""
    return f"- **{block.severity.upper()}: {name}.** {rest}{advice}"


def escaped(text: str) -> str:
    r"""Text in which only backticks have a meaning.

    Example:
        >>> print(escaped("`a_*` in _first_, then blocks.<b>.second_layer"))
        `a_*` in \_first\_, then blocks.&lt;b&gt;.second_layer
    """
    parts = _CODE.split(printable(text))
    for i in range(0, len(parts), 2):
        plain = _SPECIAL.sub(r"\\\g<0>", parts[i])
        parts[i] = plain.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return "".join(parts)
