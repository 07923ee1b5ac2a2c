"""What several participants do at one module or parameter, joined: one hook, and one measurement of each tensor."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor, nn

from lightning_hooks.engine.participant import Part
from lightning_hooks.errors import listed
from lightning_hooks.hooks import CallAction, HookSite, Passes, TensorAction, Visitor
from lightning_hooks.hooks.tree import described
from lightning_hooks.rules import INNER_TENSORS
from lightning_hooks.stats.measurement import Measurement


def build_sites(parts: Iterable[Part], called: set[int]) -> list[HookSite]:
    """One site for each module at which anything happens; `called` takes the ids of the modules that are called."""
    sites: dict[int, HookSite] = {}
    groups: dict[tuple[int, str], list[list[Part]]] = {}
    for part in parts:
        assert isinstance(part.on, nn.Module)
        site = sites.setdefault(id(part.on), HookSite(part.on, called=called))
        if part.at == "node":
            site.node = (part.visit, *site.node) if part.first else (*site.node, part.visit)
        else:
            _add(groups.setdefault((id(part.on), part.at), []), part)
    for (module, at), grouped in groups.items():
        setattr(sites[module], at, tuple(map(_action_of, grouped)))
    return list(sites.values())


def gradient_of(tensor: str) -> tuple[str, Passes]:
    """The place at a module where a tensor is hooked, and the backward passes of which its gradient is."""
    return INNER_TENSORS.get(tensor, tensor), Passes.INNER if tensor in INNER_TENSORS else Passes.LOSS


def _add(groups: list[list[Part]], part: Part) -> None:
    """Add a part to those at a module: to a group that sees the same tensors, so that it shares the measurement, or alone."""
    if part.first:
        groups.insert(0, [part])
        return
    if not _is_whole(part):
        for group in reversed(groups):
            if _is_whole(group[0]):
                break
            if group[0].path == part.path and group[0].passes is part.passes:
                group.append(part)
                return
            if part.changes or any(each.changes for each in group):
                break  # another path, but perhaps the same tensor
    groups.append([part])


def _is_whole(part: Part) -> bool:
    return isinstance(part.visit, CallAction)


def _action_of(group: list[Part]) -> TensorAction | CallAction:
    first = group[0]
    if isinstance(first.visit, CallAction):
        return first.visit
    asking = [part.absent for part in group if part.absent is not None]

    def absent(found: bool, tree: Any) -> None:
        for ask in asking:
            ask(found, tree)

    changes = any(part.changes for part in group)
    return TensorAction(first.path, visitor_of(group), changes, absent if first.path else None, first.passes)


def visitor_of(parts: Sequence[Part]) -> Visitor:
    """What is called with a tensor: the part itself if it is the only one, else all in order.

    Those that read share a measurement until one changes the tensor.
    """
    if len(parts) == 1 and parts[0].visit is not None:
        visit: Visitor = parts[0].visit
        return visit

    def visit_all(tensor: Tensor) -> Tensor | None:
        measured: Measurement | None = None
        replacement: Tensor | None = None
        for part in parts:
            if part.read is not None:
                measured = measured or Measurement(tensor)
                part.read(measured)
            elif (changed := part.visit(tensor)) is not None:
                tensor = replacement = changed
                measured = None
        return replacement

    return visit_all


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
        """Note whether a call of a module has a tensor at the path of a rule. One module that has it is enough."""
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
    more = f" (nor at {listed(others, most=5)})" if others else ""
    return f"{first}{more}, which has {has}"
