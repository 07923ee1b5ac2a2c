"""Parts of arguments and results that rules name and modules do not have."""

from __future__ import annotations

import warnings


class AbsentParts:
    """Collects them during a step, and warns once for each tensor of a rule when the step ends.

    Example:
        >>> absent = AbsentParts()
        >>> absent.note("watch: 'output.logit'", "head", "a dict with 'logits'")
        >>> absent.warn()  # doctest: +SKIP
        UserWarning: watch: 'output.logit' was not found at head, which has a dict with 'logits': nothing happens there
    """

    def __init__(self) -> None:
        self._new: dict[str, dict[str, str]] = {}
        self._known: set[str] = set()

    def note(self, rule: str, module: str, has: str) -> None:
        """Take in that the calls of a module had no tensor at the path of a rule, or that one had.

        Args:
            rule: names the rule and its tensor.
            module: the name of the module.
            has: what there was, in words; "" for the tensor. Then nothing is said of the other modules of the rule.
        """
        if not has:
            self._known.add(rule)
            self._new.pop(rule, None)
        elif rule not in self._known:
            self._new.setdefault(rule, {})[module] = has

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
