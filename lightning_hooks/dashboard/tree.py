"""The rows of a table as a tree of modules, in the order in which the modules ran."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Node:
    """A row, or a part of the module tree with rows below it.

    Args:
        name: the dotted name of the row, or the prefix of the part.
        label: what is shown, without what the part above says.
        depth: in the tree.
        row: index into the rows; None for a part.
        leaves: the rows below, in the order of the tree; of a row itself.
    """

    name: str
    label: str
    depth: int
    row: int | None
    leaves: list[int] = field(default_factory=list)

    def as_json(self, about: Mapping[str, Any]) -> dict[str, Any]:
        """What the page needs to know."""
        known = about.get(self.name, {})
        return {
            "name": self.name,
            "label": self.label,
            "depth": self.depth,
            "row": self.row,
            "leaves": len(self.leaves),
            "type": known.get("type", ""),
            "shape": known.get("shape"),
        }


class _Part:
    def __init__(self, name: str, label: str) -> None:
        self.name, self.label = name, label
        self.row: int | None = None
        self.parts: dict[str, _Part] = {}
        self.turn = (0.0, 0)


def tree(names: Sequence[str], about: Mapping[str, Any]) -> list[Node]:
    """The nodes, each before those below it. A part with one part below it is one node with it.

    Args:
        names: of the rows.
        about: of rows by name; `order` is the turn in which the module ran.

    Example:
        >>> [(node.label, node.depth, node.leaves) for node in tree(["net.0.weight", "net.0.bias", "head.weight"], {})]
        [('net.0', 0, [0, 1]), ('weight', 1, [0]), ('bias', 1, [1]), ('head.weight', 0, [2])]
    """
    root = _Part("", "")
    for row, name in enumerate(names):
        part, at = root, []
        for word in name.split("."):
            at.append(word)
            part = part.parts.setdefault(word, _Part(".".join(at), word))
        part.row = row
    _set_turns(root, about)
    nodes: list[Node] = []
    for part in _in_turn(root):
        _add(part, part.label, 0, nodes)
    return nodes


def _turn_of(name: str, about: Mapping[str, Any]) -> float:
    """When the module of a row ran; of a parameter, when its module did."""
    for known in (name, name.rpartition(".")[0]):
        order = about.get(known, {}).get("order")
        if isinstance(order, int | float):
            return float(order)
    return float("inf")


def _set_turns(part: _Part, about: Mapping[str, Any]) -> None:
    for below in part.parts.values():
        _set_turns(below, about)
    turns = [below.turn for below in part.parts.values()]
    if part.row is not None:
        turns.append((_turn_of(part.name, about), part.row))
    part.turn = min(turns, default=(0.0, 0))


def _in_turn(part: _Part) -> list[_Part]:
    return sorted(part.parts.values(), key=lambda below: below.turn)


def _add(part: _Part, label: str, depth: int, nodes: list[Node]) -> None:
    if part.row is None and len(part.parts) == 1:
        (only,) = part.parts.values()
        _add(only, f"{label}.{only.label}", depth, nodes)
        return
    if not part.parts:
        assert part.row is not None
        nodes.append(Node(part.name, label, depth, part.row, [part.row]))
        return
    group = Node(part.name, label, depth, None)
    nodes.append(group)
    first = len(nodes)
    if part.row is not None:
        nodes.append(Node(part.name, f"({label.rpartition('.')[2]} itself)", depth + 1, part.row, [part.row]))
    for below in _in_turn(part):
        _add(below, below.label, depth + 1, nodes)
    group.leaves = [node.row for node in nodes[first:] if node.row is not None]
