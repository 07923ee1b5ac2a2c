"""The line of the user's code at which the loss is computed, for findings about the loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from lightning_hooks.health.evidence import Evidence
    from lightning_hooks.health.finding import Finding
    from lightning_hooks.health.rule import HealthRule

LOSS_LINE: Final = ("loss-line",)
"""The kind of the sighting, for `quotes` of rules whose findings are about the loss."""


def line_of(finding: Finding, rules: Mapping[str, HealthRule], evidence: Evidence) -> str:
    """Where the loss is computed that a finding is about; empty if that is not known, or if it is not about the loss.

    Args:
        finding: of a rule on the loss, or of one on several tensors that has found the loss among them.
        rules: the rules of the run by name.
        evidence: of the run.
    """
    rule, facts = rules.get(finding.rule), evidence.facts
    if rule is None or facts is None or not set(LOSS_LINE).issubset(rule.quotes):
        return ""
    if rule.family != "loss" and finding.tensor and "loss" not in (finding.tensor, *finding.tensors):
        return ""
    return next((each.text for each in facts.sightings if each.kind in LOSS_LINE), "")
