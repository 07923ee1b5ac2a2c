"""A cause that somebody else knows, such as a flight recorder, among those that the table of causes gives."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from lightning_hooks.health.finding import Cause, Finding

_CATCH_ALL: Final = "NumericalRange"
"""The cause of the table for a number that is not finite. If it explains no other finding, it says no more than that."""


@dataclass(frozen=True)
class KnownCause:
    """A cause of the findings of one rule.

    Args:
        rule: the name of the rule.
        cause: the cause; its findings are replaced by those of the rule.
        keeps_names: whether a cause of the table that explains the same findings keeps its name: one that says only that a
            number is not finite gets the words of this one, another one ends with them.

    Example:
        >>> record = Cause("FirstBadNumberForward", "head gave NaN.", (), first_step=7)
        >>> table = [Cause("NumericalRange", "A number is not finite.", ("NonFinite",), first_step=7, numbers=(1,))]
        >>> finding = Finding(
        ...     "NonFinite",
        ...     rows=("",),
        ...     tensor="loss",
        ...     first_step=7,
        ...     last_step=7,
        ...     severity="critical",
        ...     evidence=(),
        ...     message="The loss is NaN.",
        ...     number=1,
        ... )
        >>> [(each.name, each.message) for each in KnownCause("NonFinite", record, True).among(table, [finding])]
        [('NumericalRange', 'head gave NaN.')]
    """

    rule: str
    cause: Cause
    keeps_names: bool = False

    def among(self, found: Sequence[Cause], recent: Iterable[Finding]) -> list[Cause]:
        """The causes of recent findings, this one among them.

        A cause of the table whose findings began before this one, such as a divergence, explains it, and its message then ends
        with this one.

        Args:
            found: the causes of the table.
            recent: the findings.
        """
        explained = [each for each in recent if each.rule == self.rule and each.last_step >= self.cause.first_step]
        if not explained:
            return list(found)
        names, numbers = tuple(each.fingerprint for each in explained), tuple(each.number for each in explained)
        others = [each for each in found if set(numbers).isdisjoint(each.numbers)]
        same = [each for each in found if not set(numbers).isdisjoint(each.numbers)]
        kept = same if self.keeps_names else [each for each in same if self._is_explained_by(each)]
        if kept:
            return [*(self._with_words(each, numbers) for each in kept), *others]
        return [replace(self.cause, findings=names, numbers=numbers), *others]

    def _with_words(self, other: Cause, explained: Collection[int]) -> Cause:
        own = self.cause
        if other.name == _CATCH_ALL and set(other.numbers) <= set(explained):
            return replace(other, message=own.message, next_steps=own.next_steps, confidence=own.confidence)
        return replace(other, message=f"{other.message} {own.message}")

    def _is_explained_by(self, other: Cause) -> bool:
        if other.first_step >= self.cause.first_step:
            return False
        return self.cause.confidence != "certain" or other.confidence != "possible"
