"""The facts of the steps in a window. Most steps change nothing, so facts are kept by the step from which they hold."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from lightning_hooks.records.facts import StepFacts
from lightning_hooks.records.saved_facts import changes, facts_of


class FactsHistory:
    """How the steps of a window trained.

    Example:
        >>> history, scaled = FactsHistory(), StepFacts(loss_scale=2.0)
        >>> for step, facts in enumerate([None, None, scaled, scaled]):
        ...     history.add(step, facts)
        >>> history.at(1), history.at(3) is scaled, FactsHistory.from_state(history.state()).at(3) == scaled
        (None, True, True)
    """

    def __init__(self) -> None:
        self._changes: list[tuple[int, StepFacts | None]] = []

    @property
    def last(self) -> StepFacts | None:
        """The facts of the last step; None if unknown."""
        return self._changes[-1][1] if self._changes else None

    def add(self, step: int, facts: StepFacts | None) -> None:
        """Add the facts of the next step."""
        if not self._changes or self._changes[-1][1] is not facts:
            self._changes.append((step, facts))

    def at(self, step: int) -> StepFacts | None:
        """The facts of a step; None if unknown. The same object as long as nothing changed."""
        position = self._count_until(step)
        return self._changes[position - 1][1] if position else None

    def since(self, step: int) -> Iterator[StepFacts]:
        """The facts of a step and of later ones, each once."""
        for _, facts in self._changes[max(0, self._count_until(step) - 1) :]:
            if facts is not None:
                yield facts

    def _count_until(self, step: int) -> int:
        return bisect_right(self._changes, step, key=lambda change: change[0])

    def forget_before(self, step: int) -> None:
        """Forget what held only before a step."""
        del self._changes[: max(0, self._count_until(step) - 1)]

    def forget_from(self, step: int) -> None:
        """Forget a step and later ones."""
        del self._changes[self._count_until(step - 1) :]

    def state(self) -> list[list[Any]]:
        """The facts as plain values, each as its difference from the facts before."""
        plain: list[list[Any]] = []
        before: StepFacts | None = None
        for step, facts in self._changes:
            plain.append([step, None if facts is None else changes(before, facts)])
            before = before if facts is None else facts
        return plain

    @classmethod
    def from_state(cls, state: Iterable[Sequence[Any]]) -> FactsHistory:
        """The history of `state`; raises ValueError or TypeError if the state is damaged."""
        history = cls()
        texts = [(int(step), text) for step, text in state]
        known = dict(facts_of((step, str(text)) for step, text in texts if text is not None))
        history._changes = [(step, known.get(step)) for step, _ in texts]
        return history
