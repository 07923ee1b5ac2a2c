"""`Choice`: how a user chooses health rules or checks: all, some by name, with other thresholds, or their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from lightning_hooks.errors import RuleError, did_you_mean, shown
from lightning_hooks.health.criterion import Criterion
from lightning_hooks.rules.reading import as_object

C = TypeVar("C", bound=Criterion)


@dataclass(frozen=True)
class Choice(Generic[C]):
    """An option by which a user chooses criteria of one kind.

    Args:
        kind: the base class of the criteria.
        option: the name of the option, for messages.
        noun: what one of the criteria is called.
    """

    kind: type[C]
    option: str
    noun: str

    def read(self, given: Any, known: Mapping[str, C]) -> list[C]:
        """The criteria that a user chose, also those that are off.

        Args:
            given: None for all known ones; a mapping from names to changed fields, or to True or False, where all others stay
                as they are; or a list of criteria, their classes, names, and mappings with `class_path` and `init_args`, where
                no other criterion is used.
            known: the criteria of the package by name.

        Raises:
            RuleError: an unknown criterion or field, or an invalid value.
        """
        if given is None:
            return [*known.values()]
        if isinstance(given, Mapping) and "class_path" not in given:
            changed = {self._known_name(name, known, self.option): value for name, value in given.items()}
            return [
                with_changes(each, changed[name], f"{self.option}[{name!r}]") if name in changed else each
                for name, each in known.items()
            ]
        if isinstance(given, Sequence) and not isinstance(given, (str, bytes)):
            return [self._read_entry(each, known, f"{self.option}[{i}]") for i, each in enumerate(given)]
        must = f"must be a list of {self.noun}s, or map names of {self.option} to their fields"
        raise RuleError(f"{self.option} {must}, got {shown(given)}")

    def _read_entry(self, entry: Any, known: Mapping[str, C], where: str) -> C:
        if isinstance(entry, self.kind):
            return entry
        if isinstance(entry, type) and issubclass(entry, self.kind):
            of_class: Any = entry
            return of_class(enabled=True)  # type: ignore[no-any-return]
        if isinstance(entry, str):
            return with_changes(known[self._known_name(entry, known, where)], True, where)
        if isinstance(entry, Mapping) and len(entry) == 1 and "class_path" not in entry:
            ((name, changes),) = entry.items()
            return with_changes(known[self._known_name(name, known, where)], changes, f"{where}[{name!r}]")
        made: C = as_object(entry, where, lambda kind: issubclass(kind, self.kind), f"a class of a {self.noun}")
        if not isinstance(made, self.kind):
            raise RuleError(f"{where} must be a {self.noun}, the name of one, or a mapping, got {shown(entry)}")
        return made

    def _known_name(self, name: Any, known: Mapping[str, C], where: str) -> str:
        if name not in known:
            raise RuleError(f"{where}: there is no {self.noun} {shown(name)}{did_you_mean(name, list(known))}")
        return str(name)


def with_changes(item: C, changes: Any, where: str) -> C:
    """A copy of a criterion with changed fields.

    Args:
        item: the criterion.
        changes: True or False for `enabled`, or fields by name, which also switch it on.
        where: a prefix of messages.

    Raises:
        RuleError: an unknown field, or a value that the criterion refuses.
    """
    if isinstance(changes, bool):
        return item.with_options({"enabled": changes})
    if not isinstance(changes, Mapping):
        raise RuleError(f"{where} must be a mapping of fields, True or False, got {shown(changes)}")
    names = item.option_names
    for name in changes:
        if name not in names:
            raise RuleError(f"{where}: unknown field {shown(name)}{did_you_mean(name, names)}; there are {', '.join(names)}")
    try:
        return item.with_options({"enabled": True, **changes})
    except RuleError as error:
        raise RuleError(f"{where}: {error}") from error
