"""Tensors inside the arguments and results of modules: one small wrapper over torch's pytrees."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from lightning_hooks.errors import listed
from lightning_hooks.private import private
from lightning_hooks.tensor_kinds import without_subclass

_STEP = re.compile(r"\[(-?\d+)\]|\.([A-Za-z_]\w*)")
_MISSING: Any = object()


def tensors_in(tree: Any, _inside: tuple[Any, ...] = ()) -> Iterator[Tensor]:
    """Every tensor of a nest of tuples, lists, mappings and dataclasses, in order; an object is not searched inside itself.

    Example:
        >>> import torch
        >>> len(list(tensors_in({"a": torch.ones(1), "b": (torch.ones(2), 3)})))
        2
    """
    if isinstance(tree, Tensor):
        yield tree
        return
    for leaf in tree_leaves(tree):
        if isinstance(leaf, Tensor):
            yield leaf
        elif any(leaf is outer for outer in _inside):  # objects that hold each other, as a node and its parent
            continue
        elif dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
            for field in dataclasses.fields(leaf):
                yield from tensors_in(getattr(leaf, field.name, None), (*_inside, leaf))
        elif isinstance(leaf, Mapping):  # a mapping that is not registered with pytree
            for value in leaf.values():
                yield from tensors_in(value, (*_inside, leaf))


def map_tensors(change: Callable[[Tensor], Tensor], tree: Any) -> Any:
    """The same nest with every tensor replaced.

    Dataclasses and dictionaries that are not registered with pytree are copied, not constructed again: they keep what is no
    argument of their class.
    """
    if isinstance(tree, Tensor):
        return change(tree)

    def one(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return change(leaf)
        fields = dataclasses.fields(leaf) if dataclasses.is_dataclass(leaf) and not isinstance(leaf, type) else ()
        mapped = {field.name: map_tensors(change, getattr(leaf, field.name)) for field in fields if hasattr(leaf, field.name)}
        if isinstance(leaf, dict):
            mapped |= {key: map_tensors(change, value) for key, value in leaf.items() if key not in mapped}
        elif isinstance(leaf, Mapping) and not fields:  # a copy of it may share its items
            return type(leaf)({key: map_tensors(change, value) for key, value in leaf.items()})  # type: ignore[call-arg]
        elif not fields:
            return leaf
        new = _copied(leaf)
        for field in fields:
            if field.name in mapped:
                object.__setattr__(new, field.name, mapped[field.name])  # of a frozen one too
        for key in leaf if isinstance(leaf, dict) else ():
            new[key] = mapped[key]
        return new

    return tree_map(one, tree)


def _copied(leaf: Any) -> Any:
    """A copy without what was computed from the old tensors."""
    try:
        new = copy(leaf)
    except TypeError:  # as that of an ordered dictionary whose class has required arguments
        return dataclasses.replace(leaf) if dataclasses.is_dataclass(leaf) else type(leaf)(leaf)  # type: ignore[type-var]
    for name in [*getattr(new, "__dict__", ())]:
        if isinstance(getattr(type(new), name, None), cached_property):
            del new.__dict__[name]
    return new


def _leaves_of_builtins(tree: Any) -> Iterator[Any]:
    if type(tree) in (tuple, list, dict) or isinstance(tree, tuple):
        for item in tree.values() if isinstance(tree, dict) else tree:
            yield from _leaves_of_builtins(item)
    else:
        yield tree


def _mapped_builtins(change: Callable[[Any], Any], tree: Any) -> Any:
    if type(tree) is dict:
        return {key: _mapped_builtins(change, value) for key, value in tree.items()}
    if type(tree) in (tuple, list):
        return type(tree)(_mapped_builtins(change, item) for item in tree)
    if isinstance(tree, tuple):  # a named one
        return type(tree)(*(_mapped_builtins(change, item) for item in tree))
    return change(tree)


def _pytree() -> tuple[Callable[..., Any], Callable[..., Any]]:
    from torch.utils import _pytree as pytree

    tree = {"a": [1], "b": (2, 3)}
    if list(pytree.tree_leaves(tree)) != [1, 2, 3] or pytree.tree_map(str, tree) != {"a": ["1"], "b": ("2", "3")}:
        raise RuntimeError("it does something else in this torch")
    return pytree.tree_leaves, pytree.tree_map


tree_leaves, tree_map = private(
    "torch.utils._pytree",
    _pytree,
    (_leaves_of_builtins, _mapped_builtins),
    "tensors are found in tuples, lists, mappings and dataclasses only, not in other classes that are registered with it",
)


def part_of(tree: Any, path: str) -> Any:
    """The part of a nest at a path such as `.a[1]`; an empty tuple where there is none.

    Example:
        >>> part_of({"a": [1, 2]}, ".a[1]")
        2
    """
    return part_at(tree, steps_of(path))


def steps_of(path: str) -> tuple[int | str, ...]:
    """The steps of a path: an index for each `[0]`, a name for each `.logits`.

    Example:
        >>> steps_of(".hidden[0]")
        ('hidden', 0)
    """
    return tuple(int(index) if index is not None else name for index, name in (m.groups() for m in _STEP.finditer(path)))


def part_at(tree: Any, steps: tuple[int | str, ...]) -> Any:
    """As `part_of`, with the path in steps, which a compiler can follow."""
    for step in steps:
        tree = _item(tree, step) if isinstance(step, int) else _named(tree, step)
        if tree is _MISSING:
            return ()
    return tree


@dataclasses.dataclass
class Arguments:
    """The arguments of a call: `[0]` is the first positional one, `.mask` the keyword `mask`."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def described(tree: Any) -> str:
    """What the arguments or the result of a module consist of, in words.

    Example:
        >>> described({"loss": 1, "logits": 2})
        "a dict with 'loss', 'logits'"
    """
    if isinstance(tree, Arguments):
        named = f" and {_names(tree.kwargs)} by name" if tree.kwargs else ""
        return f"{len(tree.args)} positional argument{'' if len(tree.args) == 1 else 's'}{named}"
    kind = type(tree).__name__
    kind = f"{'an' if kind[:1] in 'AEIOUaeiou' else 'a'} {kind}"
    if isinstance(tree, Tensor):
        return "one tensor"
    if isinstance(tree, Mapping):
        return f"{kind} with {_names(tree)}"
    if dataclasses.is_dataclass(tree):
        return f"{kind} with {_names(field.name for field in dataclasses.fields(tree))}"
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return f"{kind} with {_names(tree._fields)}"
    if isinstance(tree, tuple | list):
        return f"{kind} of {len(tree)}: {', '.join(type(item).__name__ for item in tree[:10])}"
    return "None" if tree is None else kind


def _names(names: Iterable[Any]) -> str:
    return listed(map(repr, names)) or "nothing"


def _item(tree: Any, index: int) -> Any:
    tree = tree.args if isinstance(tree, Arguments) else tree
    try:
        return tree[index]
    except (IndexError, KeyError, TypeError):
        return _MISSING


def _named(tree: Any, name: str) -> Any:
    if isinstance(tree, Arguments):
        return tree.kwargs.get(name, _MISSING)
    if isinstance(tree, Mapping) and name in tree:
        return tree[name]
    return getattr(tree, name, _MISSING)


def is_measured(tensor: Tensor) -> bool:
    """Whether a tensor of a module is measured: floating and complex ones are, integers and booleans are not."""
    if type(tensor) is Tensor or torch.compiler.is_compiling():
        return tensor.is_floating_point() or tensor.is_complex()
    with without_subclass():  # a subclass may refuse even that
        return tensor.is_floating_point() or tensor.is_complex()
