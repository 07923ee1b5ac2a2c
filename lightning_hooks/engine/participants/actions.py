"""The order of the actions of several participants, and one warning of parts that modules do not have."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

from lightning_hooks.errors import listed
from lightning_hooks.hooks import Action, BackwardPass
from lightning_hooks.hooks.parts import described
from lightning_hooks.rules import INNER_TENSORS


def in_order(actions: Iterable[Action]) -> list[Action]:
    """Actions in the order in which they run: by owner and tensor, then by participant.

    Args:
        actions: the actions in the order of their participants.
    """
    groups: dict[tuple[int, str], list[Action]] = {}
    for action in actions:
        group = groups.setdefault((id(action.owner), action.tensor), [])
        group.insert(0 if action.first else len(group), action)
    result: list[Action] = []
    for (_, tensor), group in groups.items():
        # Readers of a parameter's gradient run after all changes.
        if tensor == "grad":
            group.sort(key=lambda action: action.only_reads)
        result += group
    return result


def gradient_of(tensor: str) -> tuple[str, BackwardPass]:
    """The tensor of a module to hook for the tensor that a rule names, and in which backward passes to read its gradient."""
    return INNER_TENSORS.get(tensor, tensor), BackwardPass.INNER if tensor in INNER_TENSORS else BackwardPass.LOSS


class AbsentParts:
    """Collects parts of arguments and results that rules name and modules do not have, for one warning when the step ends.

    Example:
        >>> absent = AbsentParts()
        >>> absent.note("watch: 'output.logit'", "head", False, {"logits": 1})
        >>> absent.warn()  # doctest: +SKIP
        UserWarning: watch: 'output.logit' was not found at head, which has a dict with 'logits': the rule has no effect there
    """

    def __init__(self) -> None:
        self._new: dict[str, dict[str, str]] = {}  # rule -> module -> a description of the module's tensors
        self._settled: set[str] = set()  # rules that found their tensor in some module, or were warned of

    def note(self, rule: str, module: str, found: bool, tree: Any) -> None:
        """Note whether a call of a module has a tensor at the path of a rule. One module that has a tensor is enough.

        Args:
            rule: how a message names the rule and its path.
            module: the name of the module.
            found: whether there is a tensor.
            tree: the arguments or the result of the call.
        """
        if rule in self._settled:
            return
        if found:
            self._settled.add(rule)
            self._new.pop(rule, None)
            return
        modules = self._new.setdefault(rule, {})
        if module not in modules:
            modules[module] = described(tree)

    def warn(self) -> None:
        if not self._new:
            return
        new, self._new = self._new, {}
        self._settled.update(new)
        shown = "; ".join(f"{rule} was not found at {_listed(modules)}" for rule, modules in new.items())
        warnings.warn(f"{shown}: the rule has no effect there", stacklevel=2)


def _listed(modules: dict[str, str]) -> str:
    first, has = next(iter(modules.items()))
    others = [name for name in modules if name != first]
    more = f" (nor at {listed(others, most=5)})" if others else ""
    return f"{first}{more}, which has {has}"
