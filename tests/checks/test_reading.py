from dataclasses import dataclass

import pytest

from lightning_hooks import Check, RuleError
from lightning_hooks.checks.catalogue import DEFAULT_CHECKS
from lightning_hooks.checks.reading import as_accepted, as_checks


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
    chosen = {each.name: each for each in as_checks({"OverfitsBatch": {"steps": 9}, "InputScale": False})}
    assert chosen["OverfitsBatch"].steps == 9 and "InputScale" not in chosen
    assert names({"OverfitsBatch": True})[-1] == names({"OverfitsBatch": {}})[-1] == "OverfitsBatch"


def test_a_list_uses_only_its_entries():
    path = {"class_path": f"{__name__}.Own", "init_args": {"most": 3}}
    chosen = as_checks(["FrozenStay", Own(most=2), {"InputScale": {"most": 5.0}}])
    assert [each.name for each in chosen] == ["FrozenStay", "Own", "InputScale"] and chosen[2].most == 5
    assert as_checks([path]) == [Own(most=3)] and as_checks([Own]) == [Own()]


@pytest.mark.parametrize(
    ("checks", "said"),
    [
        (["FrozenStays"], r"checks\[0\]: there is no check 'FrozenStays' \(did you mean 'FrozenStay'"),
        ({"InputScale": {"mots": 1.0}}, r"checks\['InputScale'\]: unknown field 'mots' \(did you mean 'most'"),
        ({"InputScale": {"most": "a"}}, r"checks\['InputScale'\]: InputScale.most must be a number, got 'a'"),
        ({"OverfitsBatch": {"steps": 0}}, r"OverfitsBatch.steps must be an integer of at least 1, got 0"),
        ({"InputScale": 3}, r"checks\['InputScale'\] must be a mapping of fields, True or False, got 3"),
        (["FrozenStay", "FrozenStay"], "checks: FrozenStay is there twice"),
        ("FrozenStay", "checks must be a list of checks, or map names of checks to their fields, got 'FrozenStay'"),
        ([3], r"checks\[0\]"),
    ],
)
def test_wrong_checks_are_refused(checks, said):
    with pytest.raises(RuleError, match=said):
        as_checks(checks)


def test_accepted_patterns_name_a_check():
    assert as_accepted("InputScale", []) == ["InputScale"]
    assert as_accepted(["Own/a.*", "*/net.*"], [Own()]) == ["Own/a.*", "*/net.*"]
    with pytest.raises(RuleError, match="accept: there is no check 'InptScale' .did you mean 'InputScale'"):
        as_accepted(["InptScale/net"], [])
