"""What several participants do with the same tensors: the order of their actions, and one measurement for all that measure."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

from lightning_hooks.errors import listed
from lightning_hooks.hooks import Action, BackwardPass, together
from lightning_hooks.hooks.tree import described
from lightning_hooks.rules import INNER_TENSORS
from lightning_hooks.stats.sharing import share


def in_order(actions: Iterable[Action]) -> list[Action]:
    """Actions in the order in which they run, with one measurement where several measure the same tensors.

    Args:
        actions: in the order of their participants.
    """
    groups: dict[tuple[int, str], list[Action]] = {}
    for action in actions:
        group = groups.setdefault((id(action.owner), action.tensor), [])
        group.insert(0 if action.first else len(group), action)
    result: list[Action] = []
    for (_, tensor), group in groups.items():
        if tensor == "grad":  # readers are given what all changes made of the gradient
            group.sort(key=lambda action: action.only_reads)
        result += group if len(group) == 1 else _share_measurements(group)
    return result


def _share_measurements(actions: Sequence[Action]) -> list[Action]:
    """Put actions that measure the same tensor together, at the turn of the first: nothing changes the tensor in between."""
    slots: list[list[Action]] = []
    measuring: dict[Any, list[Action]] = {}
    for action in actions:
        if not action.only_reads:
            measuring.clear()
        elif action.merge is not None and action.source in measuring:
            measuring[action.source].append(action)
            continue
        slots.append([action])
        if action.merge is not None:
            measuring[action.source] = slots[-1]
    return [_sharing(slot) if len(slot) > 1 else slot[0] for slot in slots]


def _sharing(actions: Sequence[Action]) -> Action:
    merges = [action.merge for action in actions if action.merge is not None]
    return together(actions, share([action.call for action in actions], merges))


def gradient_of(tensor: str) -> tuple[str, BackwardPass]:
    """The tensor of a module that is hooked for a tensor of a rule, and the backward passes of which its gradient is."""
    return INNER_TENSORS.get(tensor, tensor), BackwardPass.INNER if tensor in INNER_TENSORS else BackwardPass.LOSS


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
