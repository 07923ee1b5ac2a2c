"""The items of containers that torch's pytree knows. A container may hold itself, or be nested deeper than the stack."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from copy import copy
from typing import Any

import torch

from lightning_hooks.private import private


def leaves_of(tree: Any) -> list[Any]:
    """The leaves of a nest as pytree finds them, in order; objects of classes that pytree does not know are leaves."""
    if torch.compiler.is_compiling():
        leaves: list[Any] = tree_leaves(tree)
        return leaves
    try:
        return list(tree_leaves(tree))
    except RecursionError:
        return _leaves_of_cycle(tree)


def with_leaves(change: Callable[[Any], Any], tree: Any) -> Any:
    """The same nest with every leaf replaced by what `change` returns. If a container holds itself, its copy holds itself."""
    if torch.compiler.is_compiling():
        return tree_map(change, tree)
    try:
        tree_leaves(tree)
    except RecursionError:
        return _mapped_cycle(change, tree)
    return tree_map(change, tree)


def items_of(node: Any) -> list[Any] | None:
    """The direct items of a container that pytree knows; None for other values, and for one that holds nothing but itself."""
    items = list(tree_leaves(node, is_leaf=below_root()))
    return None if len(items) == 1 and items[0] is node else items


def with_items(change: Callable[[Any], Any], node: Any) -> Any:
    """The same container with its direct items replaced by what `change` returns."""
    return tree_map(change, node, is_leaf=below_root())


def below_root() -> Callable[[Any], bool]:
    """A new `is_leaf` for pytree that stops below the root: then the leaves of a container are its direct items."""
    answers = iter((False,))
    return lambda node: next(answers, True)


def _leaves_of_cycle(tree: Any) -> list[Any]:
    """The leaves of a nest, in order; each container is searched once."""
    leaves: list[Any] = []
    # Containers by id. The values keep the containers alive, so that no other object gets the same id.
    searched: dict[int, Any] = {}
    todo = [tree]
    while todo:
        node = todo.pop()
        if id(node) in searched:
            continue
        items = items_of(node)
        if items is None:
            leaves.append(node)
        else:
            searched[id(node)] = node
            todo.extend(reversed(items))
    return leaves


def _mapped_cycle(change: Callable[[Any], Any], tree: Any) -> Any:
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
        return change(node) if items_of(node) is None else with_items(mapped, node)

    return mapped(tree)


def _leaves_of_builtins(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> list[Any]:
    if (is_leaf is None or not is_leaf(tree)) and (type(tree) in (tuple, list, dict) or _is_named_tuple(tree)):
        items = tree.values() if isinstance(tree, dict) else tree
        return [leaf for item in items for leaf in _leaves_of_builtins(item, is_leaf)]
    return [tree]


def _mapped_builtins(change: Callable[[Any], Any], tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> Any:
    if is_leaf is None or not is_leaf(tree):
        if type(tree) is dict:
            return {key: _mapped_builtins(change, value, is_leaf) for key, value in tree.items()}
        if type(tree) in (tuple, list):
            return type(tree)([_mapped_builtins(change, item, is_leaf) for item in tree])
        if _is_named_tuple(tree):
            return type(tree)(*(_mapped_builtins(change, item, is_leaf) for item in tree))
    return change(tree)


def _is_named_tuple(tree: Any) -> bool:
    return isinstance(tree, tuple) and hasattr(tree, "_fields")


def _find() -> tuple[Callable[..., Any], Callable[..., Any]]:
    from torch.utils import _pytree as pytree

    tree = {"a": [1], "b": (2, 3)}
    if list(pytree.tree_leaves(tree)) != [1, 2, 3] or pytree.tree_map(str, tree) != {"a": ["1"], "b": ("2", "3")}:
        raise RuntimeError("it does something else in this torch")
    if list(pytree.tree_leaves(tree, is_leaf=below_root())) != [[1], (2, 3)]:
        raise RuntimeError("it does something else in this torch")
    return pytree.tree_leaves, pytree.tree_map


tree_leaves, tree_map = private(
    "torch.utils._pytree",
    _find,
    (_leaves_of_builtins, _mapped_builtins),
    "tensors are found in tuples, lists, dictionaries and dataclasses only, not in other classes that are registered with it",
)
