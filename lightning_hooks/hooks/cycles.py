"""Leaves of containers that contain themselves, or are nested deeper than the stack: torch's pytree would recurse forever."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from copy import copy
from typing import Any


def below_root() -> Callable[[Any], bool]:
    """A new `is_leaf` for pytree that stops below the root: then the leaves of a container are its direct items."""
    answers = iter((False,))
    return lambda node: next(answers, True)


def is_container(node: Any, tree_leaves: Callable[..., Any]) -> bool:
    """Whether pytree finds items in an object: not for a leaf, nor for a container that holds nothing but itself.

    Args:
        tree_leaves: that of pytree.
    """
    items = list(tree_leaves(node, is_leaf=below_root()))
    return len(items) != 1 or items[0] is not node


def leaves_of_cycle(tree: Any, tree_leaves: Callable[..., Any]) -> list[Any]:
    """The leaves of a nest, in order; each container is searched once.

    Args:
        tree_leaves: that of pytree.
    """
    leaves: list[Any] = []
    # Containers by id. The values keep the containers alive, so that no other object gets the same id.
    searched: dict[int, Any] = {}
    todo = [tree]
    while todo:
        node = todo.pop()
        if id(node) in searched:
            continue
        if is_container(node, tree_leaves):
            searched[id(node)] = node
            todo.extend(reversed(list(tree_leaves(node, is_leaf=below_root()))))
        else:
            leaves.append(node)
    return leaves


def mapped_cycle(change: Callable[[Any], Any], tree: Any, tree_leaves: Callable[..., Any], tree_map: Callable[..., Any]) -> Any:
    """The same nest with every leaf replaced. If a container holds itself, its copy holds itself.

    Args:
        tree_leaves: that of pytree.
        tree_map: that of pytree.
    """
    made: dict[int, tuple[Any, Any]] = {}  # containers by id, with their copies

    def mapped(node: Any) -> Any:
        if id(node) in made:
            return made[id(node)][1]
        if type(node) in (list, deque):
            made[id(node)] = (node, new := copy(node))
            new.clear()
            new.extend([mapped(item) for item in node])
            return new
        if type(node) in (dict, OrderedDict, defaultdict):
            made[id(node)] = (node, new := copy(node))
            for key, value in node.items():
                new[key] = mapped(value)
            return new
        if not is_container(node, tree_leaves):
            return change(node)
        return tree_map(mapped, node, is_leaf=below_root())

    return mapped(tree)
