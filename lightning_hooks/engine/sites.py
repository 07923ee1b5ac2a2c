"""The parts of all participants, joined to one place for each module."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from lightning_hooks.engine.participant import ModulePart
from lightning_hooks.engine.shared_visitor import Part, SharedVisitor
from lightning_hooks.hooks import CallAction, HookSite, TensorAction

_PART_OF = {"input": "before", "output": "after", "input_grad": "input_grad", "output_grad": "output_grad"}


@dataclass
class _Shared:
    """Parts that see the same tensors, and so share one measurement."""

    path: str
    parts: list[Part] = field(default_factory=list)


def build_sites(parts: Iterable[ModulePart], called: set[int]) -> list[HookSite]:
    """One place for each module that anything happens at.

    Observers of the same tensor share a line, and with it the measurement, unless something between them may change it.

    Args:
        parts: in the order in which they act.
        called: takes the ids of the modules that are called.
    """
    places: dict[int, HookSite] = {}
    lists: dict[tuple[int, str], list[_Shared | CallAction]] = {}
    for part in parts:
        place = places.setdefault(id(part.module), HookSite(part.module, called=called))
        if part.at == "node":
            place.node = (part.part, *place.node) if part.first else (*place.node, part.part)
        else:
            _add(lists.setdefault((id(part.module), part.at), []), part)
    for (module, at), items in lists.items():
        setattr(places[module], _PART_OF[at], tuple(item if isinstance(item, CallAction) else _line(item) for item in items))
    return list(places.values())


def _add(items: list[_Shared | CallAction], part: ModulePart) -> None:
    if part.is_whole:
        items.insert(0 if part.first else len(items), part.part)
        return
    if part.first:
        items.insert(0, _Shared(part.path, [part.part]))
        return
    for item in reversed(items):
        if isinstance(item, CallAction):
            break
        if item.path == part.path:
            item.parts.append(part.part)
            return
        if _changes(item.parts) or part.part.changes:
            break  # another path, but perhaps the same tensor
    items.append(_Shared(part.path, [part.part]))


def _changes(parts: Iterable[Any]) -> bool:
    return any(part.changes for part in parts)


def _line(shared: _Shared) -> TensorAction:
    absent = _Absent(shared.parts) if shared.path else None
    return TensorAction(shared.path, SharedVisitor(shared.parts).visitor, _changes(shared.parts), absent)


class _Absent:
    """Tells parts whether what they are to see is there."""

    def __init__(self, parts: Iterable[Any]) -> None:
        self.parts = [part for part in parts if hasattr(part, "absent")]

    def __call__(self, found: bool, tree: Any) -> None:
        for part in self.parts:
            part.absent(found, tree)
