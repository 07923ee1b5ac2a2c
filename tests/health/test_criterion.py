"""Rules and checks are chosen alike: unknown names and fields are refused, changed ones are on, values have their types."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import pytest

from lightning_hooks.checks.catalogue import DEFAULT_CHECKS
from lightning_hooks.errors import RuleError
from lightning_hooks.health.choice import Choice, with_changes
from lightning_hooks.health.criterion import Criterion
from lightning_hooks.health.reference.reference import Reference
from lightning_hooks.health.reference.rules import reference_rules
from lightning_hooks.health.rules import DEFAULT_RULES


@dataclass(frozen=True, kw_only=True)
class Limit(Criterion):
    most: int = 3
    share: float = 0.5
    layer: int = 0
    is_strict: bool = False
    enabled: bool = False
    minima: ClassVar[Mapping[str, int]] = {"most": 0}


CHOICE, KNOWN = Choice(Limit, "limits", "limit"), {"Limit": Limit()}


def test_changes_switch_it_on():
    assert with_changes(Limit(), {"most": 5}, "x") == Limit(most=5, enabled=True)
    assert with_changes(Limit(), {}, "x") == with_changes(Limit(), True, "x") == Limit(enabled=True)
    assert with_changes(Limit(enabled=True), False, "x") == with_changes(Limit(), {"enabled": False}, "x") == Limit()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"moost": 5}, "x: unknown field 'moost' .did you mean 'most'.*; there are most, share, layer, is_strict, enabled"),
        ({"most": -1}, "x: Limit.most must be an integer of at least 0, got -1"),
        ({"layer": 1.5}, "x: Limit.layer must be an integer, got 1.5"),
        ({"share": "half"}, "x: Limit.share must be a number, got 'half'"),
        ({"is_strict": 1}, "x: Limit.is_strict must be True or False, got 1"),
        ("on", "x must be a mapping of fields, True or False, got 'on'"),
    ],
)
def test_bad_changes(changes, message):
    with pytest.raises(RuleError, match=message):
        with_changes(Limit(), changes, "x")
    assert with_changes(Limit(), {"layer": -1}, "x").layer == -1


def test_a_mapping_keeps_all_and_a_list_only_its_entries():
    on = Limit(enabled=True)
    assert CHOICE.read(None, KNOWN) == CHOICE.read({}, KNOWN) == [Limit()]
    assert CHOICE.read({"Limit": True}, KNOWN) == CHOICE.read(["Limit"], KNOWN) == CHOICE.read([Limit], KNOWN) == [on]
    assert CHOICE.read([], KNOWN) == [] and CHOICE.read([Limit(most=1)], KNOWN) == [Limit(most=1)]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("Limit", "limits must be a list of limits, or map names of limits to their fields, got 'Limit'"),
        (["Limits"], r"limits\[0\]: there is no limit 'Limits' .did you mean 'Limit'"),
        ({"Limits": {}}, "limits: there is no limit 'Limits' .did you mean 'Limit'"),
        ([3], r"limits\[0\] must be a limit, the name of one, or a mapping, got 3"),
    ],
)
def test_bad_choices(given, message):
    with pytest.raises(RuleError, match=message):
        CHOICE.read(given, KNOWN)


@pytest.mark.parametrize("each", [*DEFAULT_RULES, *DEFAULT_CHECKS], ids=lambda each: f"{type(each).__module__}.{each.name}")
def test_all_say_where_their_thresholds_are_from_and_what_to_try(each):
    assert each.source and each.next_steps, f"give {each.name} a source and next_steps"
    assert [step for step in each.next_steps if not step.endswith(".")] == []


@pytest.mark.parametrize(
    "criterion",
    [*DEFAULT_RULES, *DEFAULT_CHECKS, *reference_rules(Reference())],
    ids=lambda each: f"{type(each).__name__}-{each.name}",
)
def test_no_rule_or_check_stands_deeper_than_three_classes(criterion):
    ours = [kind for kind in type(criterion).__mro__ if kind.__module__.startswith("lightning_hooks.")]
    assert len(ours) <= 3, "say in `obstacles` or in a table what several rules share, instead of in a base class"
