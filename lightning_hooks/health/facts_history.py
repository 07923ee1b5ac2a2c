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
        # The steps at which the facts changed, ascending, and the facts from each of them on.
        self._steps: list[int] = []
        self._facts: list[StepFacts | None] = []
        self._kinds: dict[int, frozenset[str]] = {}  # what `kinds_since` has returned since the last step

    @property
    def last(self) -> StepFacts | None:
        """The facts of the last step; None if unknown."""
        return self._facts[-1] if self._facts else None

    def add(self, step: int, facts: StepFacts | None) -> None:
        """Add the facts of the next step."""
        if not self._facts or self._facts[-1] is not facts:
            self._steps.append(step)
            self._facts.append(facts)
        self._kinds.clear()

    def at(self, step: int) -> StepFacts | None:
        """The facts of a step; None if unknown. The same object as long as nothing changed."""
        position = bisect_right(self._steps, step)
        return self._facts[position - 1] if position else None

    def since(self, step: int) -> Iterator[StepFacts]:
        """The facts of a step and of later ones, each once."""
        for facts in self._facts[max(0, bisect_right(self._steps, step) - 1) :]:
            if facts is not None:
                yield facts

    def kinds_since(self, step: int) -> frozenset[str]:
        """The kinds of what lookouts have seen at a step or later."""
        if step not in self._kinds:
            self._kinds[step] = frozenset([each.kind for facts in self.since(step) for each in facts.sightings])
        return self._kinds[step]

    def forget_before(self, step: int) -> None:
        """Forget what held only before a step."""
        self._keep(slice(max(0, bisect_right(self._steps, step) - 1), None))

    def forget_from(self, step: int) -> None:
        """Forget a step and later ones."""
        self._keep(slice(bisect_right(self._steps, step - 1)))

    def _keep(self, part: slice) -> None:
        self._steps, self._facts, self._kinds = self._steps[part], self._facts[part], {}

    def state(self) -> list[list[Any]]:
        """The facts as plain values, each as its difference from the facts before."""
        plain: list[list[Any]] = []
        before: StepFacts | None = None
        for step, facts in zip(self._steps, self._facts, strict=True):
            plain.append([step, None if facts is None else changes(before, facts)])
            before = before if facts is None else facts
        return plain

    @classmethod
    def from_state(cls, state: Iterable[Sequence[Any]]) -> FactsHistory:
        """The history of `state`; raises ValueError or TypeError if the state is damaged."""
        history = cls()
        texts = [(int(step), text) for step, text in state]
        known = dict(facts_of((step, str(text)) for step, text in texts if text is not None))
        history._steps = [step for step, _ in texts]
        history._facts = [known.get(step) for step in history._steps]
        return history
