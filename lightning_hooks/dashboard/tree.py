"""Arranges the rows of a table as a tree of modules, in the order in which the modules ran."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final


@dataclass
class Node:
    """A row of a table, or a group: a prefix of names with rows below it.

    Args:
        name: the dotted name of the row, or the prefix of the group.
        label: the text that the page shows: the name without the prefix of the group above.
        depth: number of groups above.
        row: index into the rows; None for a group.
        leaves: indices of the rows below, in the order of the tree; for a row only its own index.
        closed: whether the group is folded at first, however much room there is.
    """

    name: str
    label: str
    depth: int
    row: int | None
    leaves: list[int] = field(default_factory=list)
    closed: bool = False

    def as_json(self, about: Mapping[str, Any], details: Mapping[str, str], cancelled: Collection[str] = ()) -> dict[str, Any]:
        """The node as the page reads it.

        Args:
            about: the facts about rows, by name.
            details: the details of modules, by name. A parameter gets that of its module if no group above has it.
            cancelled: the names of biases that the norm behind them takes away.
        """
        facts, module = about.get(self.name, {}), self.name.rpartition(".")[0]
        own = details.get(self.name, "")
        return {
            "name": self.name,
            "label": self.label,
            "depth": self.depth,
            "row": self.row,
            "leaves": len(self.leaves),
            "type": facts.get("type", ""),
            "shape": facts.get("shape"),
            **({"closed": True} if self.closed else {}),
            **({"cancelled": True} if self.row is not None and self.name in cancelled else {}),
            "detail": own or (details.get(module, "") if self.row is not None and "." in self.label else ""),
        }


_DEEPEST: Final = 100
"""The most levels of the tree, which is walked by recursion. If a name has more parts, the last label holds the rest."""


class _Branch:
    """A node under construction.

    Attributes:
        row: index of the row of this name; None if there is no such row.
        below: the nodes below by the next part of their names.
        turn: the sort key among siblings: the least (order of execution, index of the row) of the rows in the branch.
    """

    def __init__(self, name: str, label: str) -> None:
        self.name, self.label = name, label
        self.row: int | None = None
        self.below: dict[str, _Branch] = {}
        self.turn = (0.0, 0)


def tree(names: Sequence[str], about: Mapping[str, Any]) -> list[Node]:
    """The nodes of the tree, each before the nodes below it. A group with a single node below it is joined with that node.

    Several modules of one class that the first watched step did not call are one folded group at the end.

    Args:
        names: the names of the rows.
        about: facts by name; `order` is the index of the module in the order of execution, `called` is False for a module that
            the first watched step did not call.

    Example:
        >>> [(node.label, node.depth, node.leaves) for node in tree(["net.0.weight", "net.0.bias", "head.weight"], {})]
        [('net.0', 0, [0, 1]), ('weight', 1, [0]), ('bias', 1, [1]), ('head.weight', 0, [2])]
    """
    root = _Branch("", "")
    idle = _idle(names, about)
    apart = {row for rows in idle.values() for row in rows}
    for row, name in enumerate(names):
        if row in apart:
            continue
        branch, at = root, []
        for word in name.split(".", _DEEPEST - 1):
            at.append(word)
            branch = branch.below.setdefault(word, _Branch(".".join(at), word))
        branch.row = row
    _set_turns(root, about)
    nodes: list[Node] = []
    for branch in _in_turn(root):
        _add(branch, branch.label, 0, nodes)
    for kind, rows in idle.items():
        text = f"{kind}, not called in the first step"
        nodes.append(Node(text, text, 0, None, rows, closed=True))
        nodes += [Node(names[row], names[row], 1, row, [row]) for row in rows]
    return nodes


def _idle(names: Sequence[str], about: Mapping[str, Any]) -> dict[str, list[int]]:
    """The rows of modules that the first watched step did not call, by class, of each class that has several."""
    found: dict[str, list[int]] = {}
    for row, name in enumerate(names):
        facts = about.get(name, {})
        if facts.get("called") is False:
            found.setdefault(str(facts.get("type", "")), []).append(row)
    return {kind: rows for kind, rows in found.items() if len(rows) > 1}


def _turn_of(name: str, about: Mapping[str, Any]) -> float:
    """The order of execution of a row, for a parameter that of its module; infinity if it is not known."""
    for candidate in (name, name.rpartition(".")[0]):
        order = about.get(candidate, {}).get("order")
        if isinstance(order, int | float):
            return float(order)
    return float("inf")


def _set_turns(branch: _Branch, about: Mapping[str, Any]) -> None:
    for each in branch.below.values():
        _set_turns(each, about)
    turns = [each.turn for each in branch.below.values()]
    if branch.row is not None:
        turns.append((_turn_of(branch.name, about), branch.row))
    branch.turn = min(turns, default=(0.0, 0))


def _in_turn(branch: _Branch) -> list[_Branch]:
    return sorted(branch.below.values(), key=lambda each: each.turn)


def _add(branch: _Branch, label: str, depth: int, nodes: list[Node]) -> None:
    if branch.row is None and len(branch.below) == 1:
        (only,) = branch.below.values()
        _add(only, f"{label}.{only.label}", depth, nodes)
        return
    if not branch.below:
        assert branch.row is not None
        nodes.append(Node(branch.name, label, depth, branch.row, [branch.row]))
        return
    group = Node(branch.name, label, depth, None)
    nodes.append(group)
    first = len(nodes)
    if branch.row is not None:
        nodes.append(Node(branch.name, f"({label.rpartition('.')[2]} itself)", depth + 1, branch.row, [branch.row]))
    for each in _in_turn(branch):
        _add(each, each.label, depth + 1, nodes)
    # `nodes` has been filled in depth-first order, so all nodes after `group` lie below it.
    group.leaves = [node.row for node in nodes[first:] if node.row is not None]
