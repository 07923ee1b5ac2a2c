from dataclasses import dataclass, fields, replace

import pytest

from lightning_hooks import Check, RuleError
from lightning_hooks.checks.catalogue import DEFAULT_CHECKS
from lightning_hooks.checks.reading import as_accepted, as_checks
from lightning_hooks.health.rules import rules_by_name


@dataclass(frozen=True, kw_only=True)
class Own(Check):
    most: float = 1.0

    def run(self, trial):
        return self.passed("fine")


def names(checks):
    return [each.name for each in as_checks(checks)]


def test_all_checks_run_by_default_but_the_one_that_trains_fifty_steps():
    assert names(None) == [each.name for each in DEFAULT_CHECKS if each.name not in ("OverfitsBatch", "GradientsAreRight")]
    assert names({}) == names(None)


def test_a_mapping_changes_fields_and_turns_checks_on_and_off():
    chosen = {each.name: each for each in as_checks({"OverfitsBatch": {"steps": 9}, "InputNotNormalised": False})}
    assert chosen["OverfitsBatch"].steps == 9 and "InputNotNormalised" not in chosen
    assert names({"OverfitsBatch": True})[-1] == names({"OverfitsBatch": {}})[-1] == "OverfitsBatch"


def test_a_list_uses_only_its_entries():
    path = {"class_path": f"{__name__}.Own", "init_args": {"most": 3}}
    chosen = as_checks(["FrozenMoves", Own(most=2), {"InputNotNormalised": {"most": 5.0}}])
    assert [each.name for each in chosen] == ["FrozenMoves", "Own", "InputNotNormalised"] and chosen[2].most == 5
    assert as_checks([path]) == [Own(most=3)] and as_checks([Own]) == [Own()]


@pytest.mark.parametrize(
    ("checks", "said"),
    [
        (["FrozenMove"], r"checks\[0\]: there is no check 'FrozenMove' \(did you mean 'FrozenMoves'"),
        ({"InputNotNormalised": {"mots": 1.0}}, r"checks\['InputNotNormalised'\]: unknown field 'mots' \(did you mean 'most'"),
        (
            {"InputNotNormalised": {"most": "a"}},
            r"checks\['InputNotNormalised'\]: InputNotNormalised.most must be a number, got 'a'",
        ),
        ({"OverfitsBatch": {"steps": 0}}, r"OverfitsBatch.steps must be an integer of at least 1, got 0"),
        ({"InputNotNormalised": 3}, r"checks\['InputNotNormalised'\] must be a mapping of fields, True or False, got 3"),
        (["FrozenMoves", "FrozenMoves"], "checks: FrozenMoves is there twice"),
        ("FrozenMoves", "checks must be a list of checks, or map names of checks to their fields, got 'FrozenMoves'"),
        ([3], r"checks\[0\]"),
    ],
)
def test_wrong_checks_are_refused(checks, said):
    with pytest.raises(RuleError, match=said):
        as_checks(checks)


def test_a_check_has_the_thresholds_of_its_rule():
    rules = rules_by_name()
    for check in DEFAULT_CHECKS:
        rule = rules.get(check.name)
        assert (rule is None) == (check.not_shown == ""), check.name
        common = {field.name for field in fields(check)} & {field.name for field in fields(rule)} if rule else set()
        assert {name: getattr(check, name) for name in common} == {name: getattr(rule, name) for name in common}
    (changed,) = as_checks(["PoorInitialization"], [replace(rules["PoorInitialization"], most_gain=99.0, enabled=False)])
    assert changed.most_gain == 99 and changed.most_growth == 1000 and changed.enabled
    assert "NonFinite" not in [each.name for each in as_checks(None, [replace(rules["NonFinite"], enabled=False)])]


def test_accepted_patterns_name_a_check_or_a_health_rule():
    assert as_accepted(["DeadUnits/encoder.*", "ReferenceModes"], []) == ["DeadUnits/encoder.*", "ReferenceModes"]
    assert as_accepted("InputNotNormalised", []) == ["InputNotNormalised"]
    assert as_accepted(["Own/a.*", "*/net.*"], [Own()]) == ["Own/a.*", "*/net.*"]
    with pytest.raises(RuleError, match="accept: there is no check 'InputNotNormalized' .did you mean 'InputNotNormalised'"):
        as_accepted(["InputNotNormalized/net"], [])
