"""The rules that compare a run with good runs."""

from __future__ import annotations

from typing import Final

from lightning_hooks.health.reference.reference import Reference
from lightning_hooks.health.reference.rule import ReferenceRule
from lightning_hooks.health.reference.rules_facts import COMPARED_FACTS, RecordRule
from lightning_hooks.health.reference.rules_numbers import ReferenceNumbers
from lightning_hooks.health.reference.rules_structure import ReferenceStructure
from lightning_hooks.health.reference.rules_traits import TRAIT_RULES


def reference_rules(reference: Reference) -> list[ReferenceRule]:
    """The rules that compare with a reference, facts first.

    Example:
        >>> [rule.name for rule in reference_rules(Reference())][:2]
        ['ReferenceStructure', 'ReferenceModes']
    """
    return [
        ReferenceStructure(reference=reference),
        *(RecordRule.of(compared, reference) for compared in COMPARED_FACTS),
        *(rule(reference=reference) for rule in TRAIT_RULES),
        ReferenceNumbers(reference=reference),
    ]


REFERENCE_RULES: Final = tuple(rule.name for rule in reference_rules(Reference()))
"""The names of the rules that compare with a reference."""
