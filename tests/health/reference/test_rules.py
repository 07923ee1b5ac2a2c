"""The rules that compare with good runs: their names, their words, and options of single ones."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from lightning_hooks.errors import RuleError
from lightning_hooks.health.reference.reference import Reference
from lightning_hooks.health.reference.rule import IF_MEANT
from lightning_hooks.health.reference.rules import REFERENCE_RULES, reference_rules
from lightning_hooks.health.rule import Severity
from lightning_hooks.health.rules.reading import as_health_rules
from lightning_hooks.records.facts import Structure
from tests.health.reference.made import FACTS, STRUCTURE, compare, reference_of, run_of, said

PAGE = Path(__file__).parents[3] / "docs" / "baselines.md"


def test_the_page_has_a_row_for_each_rule_in_their_order() -> None:
    assert tuple(re.findall(r"^\| `(Reference\w+)` \|", PAGE.read_text("utf-8"), re.MULTILINE)) == REFERENCE_RULES


def test_each_rule_says_what_to_try_and_where_its_threshold_is_from() -> None:
    rules = {rule.name: rule for rule in reference_rules(Reference())}
    assert all(rule.next_steps and rule.source for rule in rules.values())
    assert [name for name, rule in rules.items() if IF_MEANT not in rule.next_steps] == ["ReferenceReplicas", "ReferenceData"]
    assert [name for name, rule in rules.items() if rule.severity is Severity.CRITICAL] == ["ReferenceReplicas"]
    assert rules["ReferenceModes"].next_steps[0].startswith("Look for calls of `train()` and `eval()`: in callbacks")


@pytest.mark.parametrize("name", REFERENCE_RULES)
def test_a_rule_is_changed_and_switched_off_by_its_name(name: str) -> None:
    more = reference_rules(Reference())
    changed = {rule.name: rule for rule in as_health_rules({name: {"patience": 7}}, more)}
    assert changed[name].patience == 7
    assert [rule.name for rule in changed.values() if rule.name in REFERENCE_RULES] == [*REFERENCE_RULES]
    off = {rule.name: rule.enabled for rule in as_health_rules({name: False}, more)}
    assert [each for each in REFERENCE_RULES if not off.get(each, False)] == [name]


def test_a_tolerance_is_changed_by_its_name_and_only_at_its_own_rule() -> None:
    more = reference_rules(Reference())
    changed = {rule.name: rule for rule in as_health_rules({"ReferenceWeights": {"times": 8, "patience": 2}}, more)}
    assert repr(changed["ReferenceWeights"]) == (
        "ReferenceWeights(severity='warning', patience=2, warmup=0, every_n_steps=5, enabled=True, times=8)"
    )
    assert "still=3" in repr(changed["ReferenceFlow"])
    unknown = r"unknown field 'times' .*; there are severity, patience, warmup, every_n_steps, enabled, still$"
    with pytest.raises(RuleError, match=unknown):
        as_health_rules({"ReferenceFlow": {"times": 8}}, more)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("ReferenceWeights", {"times": "8"}, "ReferenceWeights.times must be a number, got '8'"),
        ("ReferenceFlow", {"still": 2.5}, "ReferenceFlow.still must be an integer, got 2.5"),
        ("ReferenceData", {"patience": 0}, "ReferenceData.patience must be an integer of at least 1, got 0"),
    ],
)
def test_an_option_of_another_type_is_refused(name: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(RuleError, match=re.escape(message)):
        as_health_rules({name: options}, reference_rules(Reference()))


def test_nothing_is_said_of_the_mode_of_a_module_that_the_model_lacks() -> None:
    reference = reference_of(0, facts=lambda step: replace(FACTS, evaluating=("two",)))
    without = Structure(tuple(each for each in STRUCTURE.modules if each.name != "two"), STRUCTURE.parameters)
    assert said(compare(reference, run_of(7, structure=without))) == [("ReferenceStructure", "two", 0)]
    assert said(compare(reference, run_of(7))) == [("ReferenceModes", "two", 0)]
