"""Reads the tables of a run from event files in a local folder."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from lightning_hooks.rules.prefix import name_of
from lightning_hooks.tensorboard.messages import strings
from lightning_hooks.tensorboard.run_index import RunIndex
from lightning_hooks.tensorboard.tables import Steps, Tables
from lightning_hooks.tensorboard.tags import FACTS, INDEX, PLUGIN, TABLE, WINDOW

_INDEX: Final = f"{TABLE}/{INDEX}/"


class LocalTables(Tables):
    """The tables of a local run.

    Args:
        index: the index of the event files of the run.
    """

    def __init__(self, index: RunIndex) -> None:
        self._index = index
        # The facts, after the version of the index from which they were read.
        self._cached_facts: tuple[int, list[Mapping[str, Any]]] | None = None

    @property
    def version(self) -> int:
        """See `Tables.version`."""
        return self._index.version

    def vectors(self) -> list[tuple[str, str]]:
        """See `Tables.vectors`."""
        return [*self._index.vectors()]

    def vector_rows(self, tensor: str, name: str) -> tuple[str, ...]:
        """See `Tables.vector_rows`."""
        return self._index.rows(tensor, name)

    def vector_steps(self, tensor: str, name: str) -> Steps:
        """See `Tables.vector_steps`."""
        return self._index.table_points(tensor, name).steps

    def read_vector(self, tensor: str, name: str, first: int, last: int) -> Any:
        """See `Tables.read_vector`."""
        points = self._index.table_points(tensor, name).at(slice(first, last))
        return self._index.read_table(tensor, name, points)

    def asked(self) -> Mapping[str, Sequence[str]]:
        """See `Tables.asked`."""
        return asked_of(self._facts())

    def ranks(self) -> int:
        """See `Tables.ranks`."""
        return ranks_of(self._facts())

    def saved_indices(self) -> list[str]:
        """The row indices of the step views of the run, as JSON."""
        return [text for texts in self._texts() for text in texts]

    def row_indices(self) -> Sequence[Mapping[str, Any]]:
        """The row indices as mappings; their fields are unchecked."""
        return self._facts()

    def prefix_of(self, prefix: str | None, stage: str | None = None) -> str:
        """The prefix by which the tables of a monitor are stored.

        Args:
            prefix: of the monitor, with or without `watch/`; None for the first monitor.
            stage: only monitors of this stage; None for any.
        """
        stored = [each["prefix"] for each in self._facts() if stage in (None, each.get("stage")) and _is_text(each, "prefix")]
        if prefix is None:
            return stored[0] if stored else ""
        return prefix if prefix in stored else name_of(prefix)

    def tables_of(self, prefix: str) -> list[tuple[str, str]]:
        """The (tensor, statistic) of every table of a monitor, by the prefix as it is stored; the tensors are without it."""
        others = {each["prefix"] for each in self._facts() if _is_text(each, "prefix")} - {""}
        mine = [(tensor, stat) for tensor, stat in self.tables() if tensor.startswith(prefix)]
        longer = tuple(each for each in others if each != prefix and each.startswith(prefix))
        return [(tensor.removeprefix(prefix), stat) for tensor, stat in mine if not tensor.startswith(longer)]

    def saved_facts(self, prefix: str) -> list[tuple[int, str]]:
        """The steps at which facts of a monitor changed, ascending, each with the changes as JSON."""
        return self._texts_of(FACTS, prefix)

    def _texts_of(self, kind: str, prefix: str) -> list[tuple[int, str]]:
        """The texts of a kind that a monitor has written at some steps, ascending, each with its step."""
        tag = f"{TABLE}/{kind}/{prefix}"
        if tag not in self._index.tags("strings", PLUGIN):
            return []
        points = self._index.points(tag)
        texts = [strings(self._index.payload(points, i)) for i in range(len(points.steps))]
        return [(step, text) for step, each in zip(points.steps.tolist(), texts, strict=True) for text in each]

    def window_texts(self, prefix: str) -> Sequence[tuple[int, str]]:
        """See `Tables.window_texts`."""
        return self._texts_of(WINDOW, prefix)

    def _texts(self) -> Iterator[list[str]]:
        for tag in self._index.tags("strings", PLUGIN):
            if tag.startswith(_INDEX):
                points = self._index.points(tag)
                # Read the last text of the tag, if there is any.
                for i in range(len(points.steps))[-1:]:
                    yield strings(self._index.payload(points, i))

    def _facts(self) -> list[Mapping[str, Any]]:
        if self._cached_facts is None or self._cached_facts[0] != self._index.version:
            self._cached_facts = self._index.version, read_facts(self.saved_indices())
        return self._cached_facts[1]


def _is_text(fact: Mapping[str, Any], key: str) -> bool:
    return isinstance(fact.get(key), str)


def read_facts(texts: Sequence[str]) -> list[Mapping[str, Any]]:
    """The row indices as mappings, from JSON; texts that are not a JSON object are ignored."""
    facts: list[Mapping[str, Any]] = []
    for text in texts:
        try:
            fact = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(fact, Mapping):
            facts.append(fact)
    return facts


def asked_of(facts: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """The statistics that rules asked for, by tensor, in the order of the rules."""
    asked: dict[str, dict[str, None]] = {}
    for fact in facts:
        listed = fact.get("asked")
        for tensor, stats in listed.items() if isinstance(listed, Mapping) else ():
            asked.setdefault(tensor, {}).update(dict.fromkeys(map(str, stats if isinstance(stats, list) else ())))
    return {tensor: [*stats] for tensor, stats in asked.items()}


def ranks_of(facts: Sequence[Mapping[str, Any]]) -> int:
    """The number of processes of the run: the largest that a row index states, or 1."""
    ranks = [fact["ranks"] for fact in facts if isinstance(fact.get("ranks"), int) and fact["ranks"] > 0]
    return max(ranks, default=1)
