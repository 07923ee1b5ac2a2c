"""The facts of a step on which all ranks agree, so that consumers that decide by facts decide alike on every rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple
from zlib import crc32

from lightning_hooks.engine.participants.facts import with_scale
from lightning_hooks.records.facts import StepFacts
from lightning_hooks.stats.merged_state import PendingState
from lightning_hooks.stats.processes import of_first_rank

_MOST_KNOWN: Final = 100  # tuples of names whose checksum is cached; then the cache is cleared, to bound its memory


class NotedFacts(NamedTuple):
    """The facts of a step that has ended.

    Args:
        facts: None if this rank could not read its facts.
        are_common: whether they are those of the first rank, because the facts of the ranks differ.
    """

    facts: StepFacts | None
    are_common: bool


class CommonFacts:
    """Reads the facts of each step. Where they differ between ranks, those of the first rank are the facts of all.

    Each rank adds a checksum of its facts to the exchange of its table, which costs no further collective. Only while the
    checksums differ, the first rank sends its facts to the others at the end of each step.

    Args:
        read: returns the facts of the step that ends, of this rank.
        alone: whether there is only one rank.
    """

    def __init__(self, read: Callable[[], StepFacts], alone: bool) -> None:
        self._read, self._alone = read, alone
        self._differ = False
        self._summed: tuple[StepFacts, int] | None = None
        self._published: StepFacts | None = None
        # By the id of a tuple of names: the tuple and its checksum. Holding the tuple keeps the id valid.
        self._known: dict[int, tuple[tuple[str, ...], int]] = {}

    def of_rank(self) -> tuple[StepFacts, int]:
        """The facts of this rank, and their checksum, which is the same in every process."""
        facts = self._read()
        if self._alone:
            return facts, 0
        if self._summed is None or self._summed[0] is not facts:
            self._summed = facts, self._checksum(facts)
        return self._summed

    def agree(self, pending: PendingState) -> None:
        """Note whether the facts of a step differ between ranks. All ranks must call it at the same step."""
        self._differ = pending.merged.facts_differ

    def note(self, own: StepFacts | None, pending: PendingState, before: PendingState | None) -> NotedFacts:
        """The facts of a step that ends: those of the first rank if the ranks know that theirs differ. All ranks must call it.

        Args:
            own: the facts of this rank.
            pending: the exchange of the step.
            before: the exchange of the step before, if ranks have not agreed on it yet.
        """
        # If the merged table is still on its way from a device, the exchange of the step before says whether facts differ.
        latest = pending if pending.ready else before
        if latest is not None and not self._alone:
            self.agree(latest)
        return NotedFacts(of_first_rank(own), True) if self._differ else NotedFacts(own, False)

    def of_view(self, noted: NotedFacts, differ: bool, scale: float) -> StepFacts | None:
        """The facts of a step view, equal on all ranks; the object of the view before if nothing changed.

        Args:
            noted: of the step.
            differ: whether the facts of the step differ between ranks.
            scale: the loss scale of the step.
        """
        # If the ranks learned only after the step that their facts differ, keep the facts of the view before, which were equal.
        facts = noted.facts if noted.are_common or not differ else self._published
        if facts is not None:
            self._published = with_scale(facts, scale, self._published)
        return None if facts is None else self._published

    def _checksum(self, facts: StepFacts) -> int:
        groups = [
            (each.type, group.lr, group.weight_decay, self._of_names(group.params), group.strangers)
            for each in facts.optimizers
            for group in each.groups
        ]
        names = map(self._of_names, (facts.frozen, facts.evaluating, facts.apart, facts.written, facts.validating or ()))
        numbers = facts.precision, facts.accumulate, facts.last_step, facts.validating is None, facts.follows_metric
        seen = facts.looked_for, facts.sightings
        return crc32(repr((groups, *names, *numbers, *seen)).encode())

    def _of_names(self, names: tuple[str, ...]) -> int:
        known = self._known.get(id(names))
        if known is None:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            known = self._known[id(names)] = names, crc32("\n".join(names).encode())
        return known[1]
