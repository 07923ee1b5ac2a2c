"""Health rules are chosen by name, by changed fields, or as a list, and messages name what is wrong."""

import re
from dataclasses import dataclass, fields

import pytest

from lightning_hooks.errors import RuleError
from lightning_hooks.health.rule import HealthRule
from lightning_hooks.health.rules import DEFAULT_RULES
from lightning_hooks.health.rules.loss import LossDiverged, LossSpike
from lightning_hooks.health.rules.reading import as_health_rules


@dataclass(frozen=True, kw_only=True)
class OfUser(HealthRule):
    most: float = 1.0


PATH = f"{__name__}.OfUser"


def test_without_rules_all_default_ones_are_used_as_they_are():
    assert as_health_rules(None) == list(DEFAULT_RULES)


@pytest.mark.parametrize(("changes", "enabled"), [(False, False), (True, True), ({"enabled": False}, False)])
def test_a_mapping_changes_one_rule_and_leaves_all_others(changes, enabled):
    rules = as_health_rules({"LossSpike": changes})
    (changed,) = (rule for rule in rules if rule.name == "LossSpike")
    assert changed.enabled is enabled
    others = [rule for rule in rules if rule.name != "LossSpike"]
    assert others == [rule for rule in DEFAULT_RULES if rule.name != "LossSpike"]


def test_fields_switch_a_rule_on():
    off = [OfUser(enabled=False)]
    assert as_health_rules({"OfUser": {"most": 0.7}}, off)[-1] == OfUser(most=0.7, enabled=True)
    assert as_health_rules({"OfUser": {}}, off)[-1] == OfUser()


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (LossSpike(patience=2), LossSpike(patience=2)),
        ("LossSpike", LossSpike()),
        (LossSpike, LossSpike()),
        ({"LossSpike": {"sigmas": 8.0}}, LossSpike(sigmas=8.0)),
        ({"LossSpike": False}, LossSpike(enabled=False)),
        ({"class_path": PATH, "init_args": {"most": 2.0}}, OfUser(most=2.0)),
        ({"class_path": PATH}, OfUser()),
    ],
    ids=["a rule", "a name", "a class", "fields", "off", "class path", "class path alone"],
)
def test_a_list_holds_these_rules_and_no_others(rule, expected):
    assert as_health_rules([rule, LossDiverged()]) == [expected, LossDiverged()]


def test_a_name_in_a_list_switches_on_a_rule_that_is_off_by_default():
    (rule,) = as_health_rules(["OfUser"], [OfUser(enabled=False)])
    assert rule.enabled


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        (3, "rules must be a list of health rules, or map names of rules to their fields, got 3"),
        ("LossSpike", "rules must be a list of health rules, or map names of rules to their fields, got 'LossSpike'"),
        ({"LossSpik": False}, "rules: there is no health rule 'LossSpik' (did you mean 'LossSpike'"),
        (["LossSpike", "LossSpik"], "rules[1]: there is no health rule 'LossSpik' (did you mean 'LossSpike'"),
        ([{"LossSpik": {}}], "rules[0]: there is no health rule 'LossSpik' (did you mean 'LossSpike'"),
        ({"LossSpike": {"sigma": 3.0}}, "rules['LossSpike']: unknown field 'sigma' (did you mean 'sigmas'"),
        ({"LossSpike": 3}, "rules['LossSpike'] must be a mapping of fields, True or False, got 3"),
        ([{"LossSpike": {"patience": 0}}], "rules[0]['LossSpike']: LossSpike.patience must be an integer of at least 1, got 0"),
        ([3], "rules[0]"),
        ([{"class_path": "builtins.dict"}], "rules[0]"),
    ],
)
def test_messages_name_the_option_the_value_and_what_is_near(rules, message):
    with pytest.raises(RuleError, match=re.escape(message)):
        as_health_rules(rules)


def test_more_rules_are_used_besides_a_list_and_a_mapping_may_change_them():
    (more,) = as_health_rules([{"LossSpike": {"sigmas": 7.0}}])
    extra = replace_name(more)
    assert [rule.name for rule in as_health_rules(["NonFinite"], [extra])] == ["NonFinite", "Extra"]
    assert [rule.name for rule in as_health_rules(["Extra"], [extra])] == ["Extra"]
    assert as_health_rules(None, [extra])[-1] == extra
    assert as_health_rules({"Extra": {"sigmas": 9.0}}, [extra])[-1].sigmas == 9.0


def replace_name(rule):
    """The rule as one of a class of another name."""
    kind = type("Extra", (type(rule),), {})
    return kind(**{field.name: getattr(rule, field.name) for field in fields(rule)})
