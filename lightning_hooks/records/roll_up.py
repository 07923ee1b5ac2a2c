"""When there are more scalars than anybody can browse: rows merged exactly along the module tree."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from lightning_hooks.stats.statistics import STATISTICS

EVERYTHING = "all"


@dataclass(frozen=True)
class Labels:
    """What the roll-up knows of rows of which the same is written.

    Args:
        tensor: of all.
        stats: of all.
        names: one for each.
    """

    tensor: str
    stats: tuple[str, ...]
    names: Sequence[str]


@dataclass
class Block:
    """Rows that are written as one.

    Args:
        tensor: of which.
        name: of the block of the module tree.
        stats: what is written of it.
        members: positions of its rows among all labels, counted from 0.
    """

    tensor: str
    name: str
    stats: tuple[str, ...] = ()
    members: array[int] = field(default_factory=lambda: array("q"))


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
        >>> labels = Labels("grad", ("norm",), [f"layers.{i}.weight" for i in range(10)])
        >>> RollUp([labels], room=5).depth
        1
    """

    def __init__(self, labels: Sequence[Labels], room: int) -> None:
        deepest = max((name.count(".") + 1 for each in labels for name in each.names), default=0)
        self.depth = 0
        # Each level divides the blocks of the one above, so the first that does not fit ends the search.
        while self.depth < deepest and _fits(labels, self.depth + 1, room):
            self.depth += 1
        found: dict[tuple[str, str], Block] = {}
        position = 0
        for each in labels:
            stats = _mergeable(each.stats)
            for name in each.names:
                where = (each.tensor, block_of(name, self.depth))
                block = found.get(where)
                if block is None:
                    block = found[where] = Block(*where)
                block.members.append(position)
                if not set(stats).issubset(block.stats):
                    block.stats = tuple(dict.fromkeys((*block.stats, *stats)))
                position += 1
        self.blocks = list(found.values())


def _fits(labels: Sequence[Labels], depth: int, room: int) -> bool:
    tags: set[tuple[str, str, str]] = set()
    for each in labels:
        stats = _mergeable(each.stats)
        for name in each.names:
            block = block_of(name, depth)
            tags.update((each.tensor, stat, block) for stat in stats)
            if len(tags) > room:  # of ten thousand rows there may be a hundred thousand
                return False
    return True


def _mergeable(stats: Sequence[str]) -> list[str]:
    return [stat for stat in stats if stat in STATISTICS or stat == "ratio"]
