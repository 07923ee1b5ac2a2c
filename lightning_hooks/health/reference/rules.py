"""The rules that compare a run with good runs."""

from __future__ import annotations

from typing import Final

from lightning_hooks.health.reference.reference import Reference
from lightning_hooks.health.reference.rule import ReferenceRule
from lightning_hooks.health.reference.rules_facts import FACT_RULES
from lightning_hooks.health.reference.rules_numbers import ReferenceNumbers
from lightning_hooks.health.reference.rules_traits import TRAIT_RULES

_RULES: Final = (*FACT_RULES, *TRAIT_RULES, ReferenceNumbers)
REFERENCE_RULES: Final = tuple(rule.__name__ for rule in _RULES)
"""The names of the rules that compare with a reference."""


def reference_rules(reference: Reference) -> list[ReferenceRule]:
    """The rules that compare with a reference, facts first.

    Example:
        >>> [rule.name for rule in reference_rules(Reference())][:2]
        ['ReferenceStructure', 'ReferenceModes']
    """
    return [rule(reference=reference) for rule in _RULES]
