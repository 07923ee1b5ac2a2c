"""Tensors inside the arguments and results of modules: one small wrapper over torch's pytrees."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, UserDict
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from functools import cached_property
from gc import get_referents
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from lightning_hooks.hooks.cycles import below_root, is_container, leaves_of_cycle, mapped_cycle
from lightning_hooks.private import private
from lightning_hooks.tensor_kinds import without_subclass


def tensors_in(tree: Any, _inside: tuple[Any, ...] = ()) -> Iterator[Tensor]:
    """Every tensor of nested tuples, lists, dictionaries and dataclasses, in order; an object is not searched inside itself.

    Example:
        >>> import torch
        >>> len(list(tensors_in({"a": torch.ones(1), "b": (torch.ones(2), 3)})))
        2
    """
    if isinstance(tree, Tensor):
        yield tree
        return
    for leaf in _leaves(tree):
        if isinstance(leaf, Tensor):
            yield leaf
        # Skip an object that is being searched: objects may hold each other, as a node and its parent do.
        elif any(leaf is outer for outer in _inside):
            continue
        elif dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
            for field in dataclasses.fields(leaf):
                yield from tensors_in(getattr(leaf, field.name, None), (*_inside, leaf))
        # pytree does not know this class of mappings, so search the items here.
        elif isinstance(leaf, Mapping):
            for value in (stored_items(leaf) or {}).values():
                yield from tensors_in(value, (*_inside, leaf))


def map_tensors(change: Callable[[Tensor], Tensor], tree: Any, _made: list[tuple[Any, Any]] | None = None) -> Any:
    """The same nest with every tensor replaced.

    Dataclasses and dictionaries that are not registered with pytree are copied, not constructed again, so that they keep
    attributes that are no arguments of their class. If objects hold each other, their copies hold each other.
    """
    if isinstance(tree, Tensor):
        return change(tree)
    made = [] if _made is None else _made

    def one(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return change(leaf)
        fields = dataclasses.fields(leaf) if dataclasses.is_dataclass(leaf) and not isinstance(leaf, type) else ()
        items = stored_items(leaf) if isinstance(leaf, Mapping) else None
        if not fields and items is None:
            return leaf
        for old, new in made:
            if old is leaf:
                return new
        if isinstance(leaf, MappingProxyType):
            changed: dict[Any, Any] = {}
            made.append((leaf, proxy := MappingProxyType(changed)))
            changed.update((key, map_tensors(change, value, made)) for key, value in (items or {}).items())
            return proxy
        new = _copied(leaf)
        made.append((leaf, new))
        if isinstance(leaf, UserDict) and not fields:
            new.data = map_tensors(change, leaf.data, made)
            return new
        mapped = {
            field.name: map_tensors(change, getattr(leaf, field.name), made) for field in fields if hasattr(leaf, field.name)
        }
        for name, value in mapped.items():
            object.__setattr__(new, name, value)  # `setattr` would raise for a frozen dataclass.
        for key, value in (items or {}).items() if isinstance(leaf, dict) else ():
            new[key] = mapped[key] if key in mapped else map_tensors(change, value, made)
        return new

    return _mapped(one, tree)


def stored_items(mapping: Any) -> Any:
    """The items that a mapping stores, without calling code of its class; None if only the class itself can tell its items.

    A class may compute an item whenever it is read, and draw random numbers for it: reading it once more would change the
    weights. Registering a class with pytree declares that its items can be read.

    Example:
        >>> class Doubled(dict):
        ...     def __getitem__(self, key):
        ...         return 2 * super().__getitem__(key)
        >>> stored_items(Doubled(a=1))
        {'a': 1}
    """
    if type(mapping) is dict or (torch.compiler.is_compiling() and isinstance(mapping, (dict, MappingProxyType))):
        return mapping
    if isinstance(mapping, dict):
        return dict(dict.items(mapping))
    if isinstance(mapping, UserDict):
        return stored_items(vars(mapping).get("data"))
    if isinstance(mapping, MappingProxyType):
        # A proxy refers to one object, the mapping that it shows.
        return stored_items(get_referents(mapping)[0])
    return mapping if is_container(mapping, tree_leaves) else None


def _copied(leaf: Any) -> Any:
    """A copy without cached properties, which were computed from the old tensors."""
    # `copy` raises TypeError for an object whose class needs arguments, such as a subclass of OrderedDict.
    try:
        new = _copied_dict(leaf) if isinstance(leaf, dict) else copy(leaf)
    except TypeError:
        return dataclasses.replace(leaf) if dataclasses.is_dataclass(leaf) else type(leaf)(leaf)  # type: ignore[type-var]
    for name in [*getattr(new, "__dict__", ())]:
        if isinstance(getattr(type(new), name, None), cached_property):
            del new.__dict__[name]
    return new


def _copied_dict(leaf: Any) -> Any:
    base: Any = OrderedDict if isinstance(leaf, OrderedDict) else dict
    kind: Any = type(leaf)
    copies_itself = hasattr(kind, "__copy__") or kind.__reduce__ not in (object.__reduce__, OrderedDict.__reduce__)
    if copies_itself or kind.items is base.items:
        return copy(leaf)
    # Do not call `copy`, which would call the method `items` of the class: that may compute the items instead of returning the
    # stored ones.
    new = kind.__new__(kind)
    vars(new).update(vars(leaf))
    for key, value in dict.items(leaf):
        base.__setitem__(new, key, value)
    return new


def _leaves_of_builtins(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> list[Any]:
    if (is_leaf is None or not is_leaf(tree)) and (type(tree) in (tuple, list, dict) or isinstance(tree, tuple)):
        items = tree.values() if isinstance(tree, dict) else tree
        return [leaf for item in items for leaf in _leaves_of_builtins(item, is_leaf)]
    return [tree]


def _mapped_builtins(change: Callable[[Any], Any], tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> Any:
    if is_leaf is None or not is_leaf(tree):
        if type(tree) is dict:
            return {key: _mapped_builtins(change, value, is_leaf) for key, value in tree.items()}
        if type(tree) in (tuple, list):
            return type(tree)([_mapped_builtins(change, item, is_leaf) for item in tree])
        if isinstance(tree, tuple):  # a named tuple
            return type(tree)(*(_mapped_builtins(change, item, is_leaf) for item in tree))
    return change(tree)


def _pytree() -> tuple[Callable[..., Any], Callable[..., Any]]:
    from torch.utils import _pytree as pytree

    tree = {"a": [1], "b": (2, 3)}
    if list(pytree.tree_leaves(tree)) != [1, 2, 3] or pytree.tree_map(str, tree) != {"a": ["1"], "b": ("2", "3")}:
        raise RuntimeError("it does something else in this torch")
    if list(pytree.tree_leaves(tree, is_leaf=below_root())) != [[1], (2, 3)]:
        raise RuntimeError("it does something else in this torch")
    return pytree.tree_leaves, pytree.tree_map


tree_leaves, tree_map = private(
    "torch.utils._pytree",
    _pytree,
    (_leaves_of_builtins, _mapped_builtins),
    "tensors are found in tuples, lists, dictionaries and dataclasses only, not in other classes that are registered with it",
)


def _leaves(tree: Any) -> list[Any]:
    if torch.compiler.is_compiling():
        leaves: list[Any] = tree_leaves(tree)
        return leaves
    try:
        return list(tree_leaves(tree))
    except RecursionError:
        return leaves_of_cycle(tree, tree_leaves)


def _mapped(change: Callable[[Any], Any], tree: Any) -> Any:
    if torch.compiler.is_compiling():
        return tree_map(change, tree)
    try:
        tree_leaves(tree)
    except RecursionError:
        return mapped_cycle(change, tree, tree_leaves, tree_map)
    return tree_map(change, tree)


def is_measured(tensor: Tensor) -> bool:
    """Whether a tensor of a module is measured: floating-point and complex tensors are, integers and booleans are not."""
    if type(tensor) is Tensor or torch.compiler.is_compiling():
        return tensor.is_floating_point() or tensor.is_complex()
    # A tensor subclass may raise even in these methods, so call those of `Tensor`.
    with without_subclass():
        return tensor.is_floating_point() or tensor.is_complex()
