"""Restore values that a step changes in place: containers, tensors, generators, and objects of the user's own classes."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any, Final

import torch
from torch import Tensor, nn

from lightning_hooks.engine.recording.source_lines import is_user_code
from lightning_hooks.tensor_kinds import is_plain

_MOST: Final = 10_000  # values below one attribute
_CONTAINERS: Final = (dict, list, set, deque)


def saved_content(value: Any, saved_tensors: Callable[[Sequence[Tensor]], Callable[[], None]]) -> Callable[[], None]:
    """A function that puts back what a value holds, at any depth, and keeps the objects.

    Args:
        value: an attribute of a module.
        saved_tensors: as this function, for the elements of tensors.

    Example:
        >>> history = {"losses": [1.0]}
        >>> restore = saved_content(history, lambda tensors: lambda: None)
        >>> history["losses"].append(2.0)
        >>> restore()
        >>> history
        {'losses': [1.0]}
    """
    restores: list[Callable[[], None]] = []
    seen: set[int] = set()
    waiting: deque[Any] = deque([value])
    while waiting and len(seen) < _MOST:
        each = waiting.popleft()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, Tensor):
            # A tensor of a graph is not changed in place, and parameters are restored by themselves.
            if is_plain(each) and not each.requires_grad and not isinstance(each, nn.Parameter):
                restores.append(saved_tensors([each]))
        elif isinstance(each, torch.Generator):
            restores.append(_saved_generator(each))
        else:
            holder = each if isinstance(each, _CONTAINERS) else _attributes(each)
            if holder is not None:
                restores.append(_saved_holder(holder))
                waiting.extend(islice(holder.values() if isinstance(holder, dict) else holder, _MOST))

    def restore() -> None:
        for each in restores:
            each()

    return restore


def _attributes(value: Any) -> dict[str, Any] | None:
    """The attributes of an object of a class of the user's own; None for other values."""
    module = sys.modules.get(type(value).__module__)
    file = getattr(module, "__file__", None)
    if file is None or "-packages" in file or not is_user_code(file) or isinstance(value, (nn.Module, type)):
        return None
    attributes = getattr(value, "__dict__", None)
    return attributes if isinstance(attributes, dict) else None


def _saved_generator(generator: torch.Generator) -> Callable[[], None]:
    state = generator.get_state()

    def restore() -> None:
        generator.set_state(state)

    return restore


def _saved_holder(holder: Any) -> Callable[[], None]:
    content = _content(holder)

    def restore() -> None:
        now = _content(holder)
        if len(now) == len(content) and all(_is_same(one, other) for one, other in zip(now, content, strict=True)):
            return
        holder.clear()
        holder.update(content) if isinstance(holder, (dict, set)) else holder.extend(content)

    return restore


def _content(holder: Any) -> list[Any]:
    items: Iterable[Any] = holder.items() if isinstance(holder, dict) else holder
    return list(items)


def _is_same(one: Any, other: Any) -> bool:
    """Whether two entries are the same object, or the same key with the same object."""
    if isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other) == 2:
        return one[0] is other[0] and one[1] is other[1]
    return one is other
