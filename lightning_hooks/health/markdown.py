"""Findings and causes as Markdown, for TensorBoard's Text tab."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from lightning_hooks.errors import printable
from lightning_hooks.health.finding import Cause, Finding
from lightning_hooks.health.text import Block, blocks_of

_CODE: Final = re.compile("(`[^`]*`)")
# Markdown takes no underscore between letters or digits as emphasis. Leave it unescaped, so that names stay readable.
_SPECIAL: Final = re.compile(r"[\\*\[\]|]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")


def markdown_of(causes: Iterable[Cause], findings: Iterable[Finding]) -> str:
    """Causes and findings as Markdown, the worst first.

    Example:
        >>> markdown_of([], [])
        'Nothing was found.'
    """
    return "\n\n".join(map(_of_block, blocks_of(causes, [*findings]))) or "Nothing was found."


# At most looks, most findings are those of the look before. Keep their text.
@lru_cache(maxsize=1024)
def _of_block(block: Block) -> str:
    name, _, rest = escaped(block.verdict).partition(". ")
    points = [escaped(text) for text in block.why]
    points += [f"**Next:** {escaped(text)}" for text in block.next_steps]
    points += [f"**Or:** {escaped(text)}" for text in block.alternatives]
    return "\n".join([f"**{block.severity.upper()}: {name}.** {rest}", "", *(f"- {point}" for point in points)])


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
