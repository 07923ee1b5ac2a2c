"""The tables of a run whose event files are in a folder here."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from lightning_hooks.tensorboard.messages import strings
from lightning_hooks.tensorboard.run_index import INDEX, PLUGIN, TABLE, RunIndex
from lightning_hooks.tensorboard.tables import Steps, Tables

_INDEX: Final = f"{TABLE}/{INDEX}/"


class LocalTables(Tables):
    """Reads the vectors of a run index.

    Args:
        index: of the event files.
    """

    def __init__(self, index: RunIndex) -> None:
        self._index = index
        self._said: tuple[int, list[Mapping[str, Any]]] | None = None  # as of a version of the index

    @property
    def version(self) -> int:
        """As of `Tables`."""
        return self._index.version

    def vectors(self) -> list[tuple[str, str]]:
        """As of `Tables`."""
        return [*self._index.vectors()]

    def vector_rows(self, tensor: str, name: str) -> tuple[str, ...]:
        """As of `Tables`."""
        return self._index.rows(tensor, name)

    def vector_steps(self, tensor: str, name: str) -> Steps:
        """As of `Tables`."""
        return self._index.table_points(tensor, name).steps

    def read_vector(self, tensor: str, name: str, first: int, last: int) -> Any:
        """As of `Tables`."""
        where = self._index.table_points(tensor, name).at(slice(first, last))
        return self._index.read_table(tensor, name, where)

    def asked(self) -> Mapping[str, Sequence[str]]:
        """As of `Tables`."""
        return asked_of(self._facts())

    def ranks(self) -> int:
        """As of `Tables`."""
        return ranks_of(self._facts())

    def saved_indices(self) -> list[str]:
        """The row indices of the run's step views as JSON, each with the file and step of it."""
        return [text for texts in self._texts() for text in texts]

    def _texts(self) -> Iterator[list[str]]:
        for tag in self._index.tags("strings", PLUGIN):
            if tag.startswith(_INDEX):
                where = self._index.points(tag)
                for i in range(len(where.steps))[-1:]:
                    yield strings(self._index.payload(where, i))

    def _facts(self) -> list[Mapping[str, Any]]:
        if self._said is None or self._said[0] != self._index.version:
            self._said = self._index.version, read_facts(self.saved_indices())
        return self._said[1]


def read_facts(texts: Sequence[str]) -> list[Mapping[str, Any]]:
    """What row indices say, from JSON; damaged ones say nothing."""
    found: list[Mapping[str, Any]] = []
    for text in texts:
        try:
            fact = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(fact, Mapping):
            found.append(fact)
    return found


def asked_of(facts: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """The statistics that rules asked of each tensor, in their order."""
    asked: dict[str, dict[str, None]] = {}
    for fact in facts:
        listed = fact.get("asked")
        for tensor, stats in listed.items() if isinstance(listed, Mapping) else ():
            asked.setdefault(tensor, {}).update(dict.fromkeys(map(str, stats if isinstance(stats, list) else ())))
    return {tensor: [*stats] for tensor, stats in asked.items()}


def ranks_of(facts: Sequence[Mapping[str, Any]]) -> int:
    """How many processes the run had."""
    found = [fact["ranks"] for fact in facts if isinstance(fact.get("ranks"), int) and fact["ranks"] > 0]
    return max(found, default=1)
