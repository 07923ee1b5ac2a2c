"""Parts of arguments and results that rules name and modules do not have."""

from __future__ import annotations

import warnings
from typing import Any

from lightning_hooks.hooks.tree import described


class AbsentParts:
    """Collects them during a step, and warns once for each tensor of a rule when the step ends.

    Example:
        >>> absent = AbsentParts()
        >>> absent.note("watch: 'output.logit'", "head", False, {"logits": 1})
        >>> absent.warn()  # doctest: +SKIP
        UserWarning: watch: 'output.logit' was not found at head, which has a dict with 'logits': nothing happens there
    """

    def __init__(self) -> None:
        self._new: dict[str, dict[str, str]] = {}
        self._known: set[str] = set()

    def note(self, rule: str, module: str, found: bool, tree: Any) -> None:
        """Take in whether a call of a module has a tensor at the path of a rule. One module that has it is enough.

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
        """Warn of what is new."""
        if not self._new:
            return
        new, self._new = self._new, {}
        self._known.update(new)
        shown = "; ".join(f"{rule} was not found at {_modules(found)}" for rule, found in new.items())
        warnings.warn(f"{shown}: nothing happens there", stacklevel=2)


def _modules(found: dict[str, str]) -> str:
    first, has = next(iter(found.items()))
    others = [name for name in found if name != first]
    more = f" (nor at {', '.join(others[:5])}{f' and {len(others) - 5} more' if len(others) > 5 else ''})" if others else ""
    return f"{first}{more}, which has {has}"
