"""When there are more scalars than anybody can browse: rows merged exactly along the module tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from lightning_hooks.stats.scalars import STATISTICS

EVERYTHING = "all"


@dataclass(frozen=True)
class TapLabel:
    """What the roll-up knows of a row: name, tensor and its mergeable statistics."""

    name: str
    tensor: str
    stats: tuple[str, ...]


@dataclass
class Block:
    """Rows that are written as one.

    Args:
        tensor: of which.
        name: of the block of the module tree.
        stats: what is written of it.
        members: positions of its rows among the labels.
    """

    tensor: str
    name: str
    stats: tuple[str, ...] = ()
    members: list[int] = field(default_factory=list)


def block_of(name: str, depth: int) -> str:
    """The block of the module tree that holds a name.

    Example:
        >>> block_of("encoder.layers.0.attn.weight", 3), block_of("encoder.bias", 3), block_of("x.y", 0)
        ('encoder.layers.0', 'encoder.bias', 'all')
    """
    return ".".join(name.split(".")[:depth]) if depth else EVERYTHING


class RollUp:
    """The deepest level of the module tree at which the scalars fit.

    Args:
        labels: every row that is written as scalars.
        room: how many scalars there may be.

    Example:
        >>> labels = [TapLabel(f"layers.{i}.weight", "grad", ("norm",)) for i in range(10)]
        >>> RollUp(labels, room=5).depth
        1
    """

    def __init__(self, labels: Sequence[TapLabel], room: int) -> None:
        deepest = max((label.name.count(".") + 1 for label in labels), default=0)
        self.depth = 0
        # Each level divides the blocks of the one above, so the first that does not fit ends the search.
        while self.depth < deepest and _fits(labels, self.depth + 1, room):
            self.depth += 1
        found: dict[tuple[str, str], Block] = {}
        for position, label in enumerate(labels):
            where = (label.tensor, block_of(label.name, self.depth))
            block = found.setdefault(where, Block(*where))
            block.members.append(position)
            block.stats = tuple(dict.fromkeys((*block.stats, *_mergeable(label.stats))))
        self.blocks = list(found.values())


def _fits(labels: Sequence[TapLabel], depth: int, room: int) -> bool:
    tags: set[tuple[str, str, str]] = set()
    for label in labels:
        block = block_of(label.name, depth)
        tags.update((label.tensor, stat, block) for stat in _mergeable(label.stats))
        if len(tags) > room:  # of ten thousand rows there may be a hundred thousand
            return False
    return True


def _mergeable(stats: Sequence[str]) -> list[str]:
    return [stat for stat in stats if stat in STATISTICS or stat == "ratio"]
