"""The rules that compare a run with good runs."""

from __future__ import annotations

from typing import Final

from lightning_hooks.health.reference.reference import Reference
from lightning_hooks.health.reference.rule import Compared, ReferenceRule
from lightning_hooks.health.reference.rules_facts import FACTS
from lightning_hooks.health.reference.rules_numbers import NUMBERS
from lightning_hooks.health.reference.rules_structure import STRUCTURE
from lightning_hooks.health.reference.rules_traits import TRAITS

COMPARED: Final[tuple[Compared, ...]] = (STRUCTURE, *FACTS, *TRAITS, NUMBERS)
"""All that is compared with good runs, an entry for each rule, facts first."""


def reference_rules(reference: Reference) -> list[ReferenceRule]:
    """The rules that compare with a reference, facts first.

    Example:
        >>> [rule.name for rule in reference_rules(Reference())][:2]
        ['ReferenceStructure', 'ReferenceModes']
    """
    return [ReferenceRule.of(compared, reference) for compared in COMPARED]


REFERENCE_RULES: Final = tuple(compared.name for compared in COMPARED)
"""The names of the rules that compare with a reference."""
