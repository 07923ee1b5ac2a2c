"""What several participants do at one module or parameter, joined: one hook, and one measurement of each tensor."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from lightning_hooks.engine.participant import ModulePart, Part
from lightning_hooks.hooks import CallAction, HookSite, TensorAction, Visitor
from lightning_hooks.hooks.tree import described
from lightning_hooks.stats.measurement import Measurement

_FIELD_OF = {"input": "before", "output": "after", "input_grad": "input_grad", "output_grad": "output_grad"}


@dataclass
class _SameTensor:
    """Parts that see the same tensors, and so share one measurement."""

    path: str
    parts: list[Part] = field(default_factory=list)


def build_sites(parts: Iterable[ModulePart], called: set[int]) -> list[HookSite]:
    """One site for each module at which anything happens.

    Observers of the same tensor share a measurement, unless a part between them may change the tensor.

    Args:
        parts: in the order in which they act.
        called: takes the ids of the modules that are called.
    """
    sites: dict[int, HookSite] = {}
    actions: dict[tuple[int, str], list[_SameTensor | CallAction]] = {}
    for part in parts:
        site = sites.setdefault(id(part.module), HookSite(part.module, called=called))
        if part.at == "node":
            site.node = (part.part, *site.node) if part.first else (*site.node, part.part)
        else:
            _add(actions.setdefault((id(part.module), part.at), []), part)
    for (module, at), items in actions.items():
        joined = tuple(item if isinstance(item, CallAction) else _tensor_action(item) for item in items)
        setattr(sites[module], _FIELD_OF[at], joined)
    return list(sites.values())


def visitor_of(parts: Sequence[Part]) -> Visitor:
    """What is called with a tensor: the part itself if it is the only one and only reads, else all in order."""
    first: Any = parts[0]
    return first.see if len(parts) == 1 and hasattr(type(first), "see") else _SharedVisitor(parts)


class _SharedVisitor:
    """Shows a tensor to several parts; those that look share a measurement until one changes the tensor."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = list(parts)

    def __call__(self, tensor: Tensor) -> Tensor | None:
        measured: Measurement | None = None
        replacement: Tensor | None = None
        for part in self.parts:
            if hasattr(part, "look"):
                if measured is None:
                    measured = Measurement(tensor)
                part.look(measured)
            else:
                changed = part.change(tensor)
                if changed is not None:
                    tensor = replacement = changed
                    measured = None
        return replacement


def _add(items: list[_SameTensor | CallAction], part: ModulePart) -> None:
    if part.is_whole:
        items.insert(0 if part.first else len(items), part.part)
        return
    if part.first:
        items.insert(0, _SameTensor(part.path, [part.part]))
        return
    for item in reversed(items):
        if isinstance(item, CallAction):
            break
        if item.path == part.path:
            item.parts.append(part.part)
            return
        if _changes(item.parts) or part.part.changes:
            break  # another path, but perhaps the same tensor
    items.append(_SameTensor(part.path, [part.part]))


def _changes(parts: Iterable[Any]) -> bool:
    return any(part.changes for part in parts)


def _tensor_action(same: _SameTensor) -> TensorAction:
    asking = [part.absent for part in same.parts if hasattr(part, "absent")] if same.path else []

    def absent(found: bool, tree: Any) -> None:
        for ask in asking:
            ask(found, tree)

    return TensorAction(same.path, visitor_of(same.parts), _changes(same.parts), absent if same.path else None)


class AbsentParts:
    """Parts of arguments and results that rules name and modules lack: one warning, when the step ends.

    Example:
        >>> absent = AbsentParts()
        >>> absent.note("watch: 'output.logit'", "head", False, {"logits": 1})
        >>> absent.warn()  # doctest: +SKIP
        UserWarning: watch: 'output.logit' was not found at head, which has a dict with 'logits': the rule has no effect there
    """

    def __init__(self) -> None:
        self._new: dict[str, dict[str, str]] = {}
        self._known: set[str] = set()

    def note(self, rule: str, module: str, found: bool, tree: Any) -> None:
        """Note whether a call of a module has a tensor at the path of a rule. One module that has it is enough.

        Args:
            rule: names the rule and its tensor.
            module: the name of the module.
            found: whether there is one.
            tree: the arguments or the result.
        """
        if rule in self._known:
            return
        if found:
            self._known.add(rule)
            self._new.pop(rule, None)
            return
        modules = self._new.setdefault(rule, {})
        if module not in modules:
            modules[module] = described(tree)

    def warn(self) -> None:
        if not self._new:
            return
        new, self._new = self._new, {}
        self._known.update(new)
        shown = "; ".join(f"{rule} was not found at {_modules(found)}" for rule, found in new.items())
        warnings.warn(f"{shown}: the rule has no effect there", stacklevel=2)


def _modules(found: dict[str, str]) -> str:
    first, has = next(iter(found.items()))
    others = [name for name in found if name != first]
    more = f" (nor at {', '.join(others[:5])}{f' and {len(others) - 5} more' if len(others) > 5 else ''})" if others else ""
    return f"{first}{more}, which has {has}"
