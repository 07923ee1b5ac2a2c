"""Parts of the arguments or of the result of a module: what a path such as `.hidden[0]` names, and what there is to name."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from lightning_hooks.errors import listed
from lightning_hooks.nested.kinds import stored_items

_STEP = re.compile(r"\[(-?\d+)\]|\.([A-Za-z_]\w*)")
_MISSING: Any = object()


def part_of(tree: Any, path: str) -> Any:
    """The part of a nest at a path such as `.a[1]`; an empty tuple if there is no such part.

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
    """The same as `part_of` for a path in steps. A compiler can trace this function, but not the parsing of a path."""
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
    if isinstance(tree, Mapping) and (items := stored_items(tree)) is not None:
        return f"{kind} with {_names(items)}"
    if dataclasses.is_dataclass(tree):
        return f"{kind} with {_names(field.name for field in dataclasses.fields(tree))}"
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return f"{kind} with {_names(tree._fields)}"
    if isinstance(tree, tuple | list):
        return f"{kind} of {len(tree)}: {', '.join(type(item).__name__ for item in tree[:10])}"
    if isinstance(tree, Mapping):
        return f"{kind}, a mapping that may compute its items and is therefore not searched"
    return "None" if tree is None else kind


def _names(names: Iterable[Any]) -> str:
    return listed(map(repr, names)) or "nothing"


def _item(tree: Any, index: int) -> Any:
    tree = tree.args if isinstance(tree, Arguments) else tree
    if isinstance(tree, Mapping):
        return _item_of_mapping(tree, index)
    try:
        return tree[index]
    except (IndexError, KeyError, TypeError):
        return _MISSING


def _item_of_mapping(tree: Any, index: int) -> Any:
    items = stored_items(tree)
    if items is None or index in items:
        return _MISSING if items is None else items[index]
    # An output of Hugging Face's transformers is both a dictionary and a dataclass, and can be indexed by numbers too.
    has_fields = dataclasses.is_dataclass(tree)
    if isinstance(tree, dict) and has_fields and -len(items) <= index < len(items):
        return list(items.values())[index]
    return _MISSING


def _named(tree: Any, name: str) -> Any:
    if isinstance(tree, Arguments):
        return tree.kwargs.get(name, _MISSING)
    if isinstance(tree, Mapping):
        items = stored_items(tree)
        if items is not None and name in items:
            return items[name]
        if items is None and not any(field.name == name for field in _fields(tree)):
            return _MISSING
    return getattr(tree, name, _MISSING)


def _fields(tree: Any) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(tree) if dataclasses.is_dataclass(tree) else ()
