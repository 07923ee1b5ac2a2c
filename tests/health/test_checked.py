"""Findings of the checks before a run: their numbers, when they are over, and that rules of the same name join them."""

import json

import pytest

from lightning_hooks.errors import RuleError
from lightning_hooks.health.engine import Diagnosis
from lightning_hooks.health.finding import Finding
from lightning_hooks.health.rule import Severity, Symptom
from tests.health.outlets_for_tests import HEALTHY, SICK, consume, started, views
from tests.health.rules_for_tests import Huge


def fault(check="InputNotNormalised", row="fc", step=0, severity=Severity.WARNING):
    symptom = Symptom(row, tensor="", step=step, measured=127.0, threshold=10.0, text="the input has a mean of 127")
    return Finding(
        check,
        rows=(row,),
        tensor="",
        first_step=step,
        last_step=step,
        severity=severity,
        evidence=(symptom,),
        message=f"{row}: the input has a mean of 127",
        next_steps=("Divide it.",),
    )


def kinds(events):
    return [(event.kind, event.step, event.finding.fingerprint, event.finding.number) for event in events if event.finding]


def test_it_is_new_once_then_over_and_again():
    diagnosis = Diagnosis([])
    assert kinds(diagnosis.add_checked([fault()], ["InputNotNormalised"], 0)) == [("new", 0, "InputNotNormalised/fc", 1)]
    assert diagnosis.add_checked([fault(step=7)], ["InputNotNormalised"], 7) == []
    (finding,) = diagnosis.findings
    assert (finding.first_step, finding.last_step, finding.is_over) == (0, 7, None)
    assert diagnosis.add_checked([], [], 9) == [], "the check was skipped, so the fault may still be there"
    assert kinds(diagnosis.add_checked([], ["InputNotNormalised"], 12)) == [("over", 12, "InputNotNormalised/fc", 1)]
    assert diagnosis.add_checked([], ["InputNotNormalised"], 13) == [] and diagnosis.findings[0].is_over == 12
    assert kinds(diagnosis.add_checked([fault(step=20)], ["InputNotNormalised"], 20)) == [
        ("again", 20, "InputNotNormalised/fc", 1)
    ]
    assert diagnosis.findings[0].is_over is None and diagnosis.findings[0].first_step == 0


def numbers_of(diagnosis):
    return [(each.rule, each.number, each.rows, each.first_step, each.is_over) for each in diagnosis.findings]


def look(diagnosis, series, first=0):
    return [event for view in views(series, first=first) for event in diagnosis.add(view)]


@pytest.mark.parametrize("row", ["a", "the model"])
def test_a_rule_that_finds_what_a_check_of_its_name_has_found_tells_nothing_new(row):
    diagnosis = Diagnosis([Huge()])
    diagnosis.add_checked([fault("Huge", row), fault()], ["Huge"], 0)
    rows = tuple(dict.fromkeys([row, "a"]))
    assert [event.kind for event in look(diagnosis, SICK)] == ["grown"] * (len(rows) - 1)
    assert numbers_of(diagnosis) == [("Huge", 1, rows, 0, None), ("InputNotNormalised", 2, ("fc",), 0, None)]
    finding = diagnosis.findings[0]
    assert finding.message == f"{row}: the input has a mean of 127" and finding.next_steps == ("Divide it.",)
    assert [symptom.measured for symptom in finding.evidence] == [127.0, 20.0] and finding.last_step == 19
    assert kinds(look(diagnosis, HEALTHY, 20)) == [("over", 24, finding.fingerprint, 1)], "the rule says when it is gone"
    assert kinds(diagnosis.add_checked([fault("Huge", row, step=40)], ["Huge"], 40)) == [("again", 40, f"Huge/{row}", 1)]


def test_a_fault_that_begins_later_at_another_row_is_a_finding_of_its_own():
    diagnosis = Diagnosis([Huge()])
    diagnosis.add_checked([fault("Huge", "b")], ["Huge"], 0)
    look(diagnosis, HEALTHY * 2)
    look(diagnosis, SICK, 40)
    assert numbers_of(diagnosis) == [("Huge", 1, ("b",), 0, None), ("Huge", 2, ("a",), 45, None)]


def test_a_check_that_finds_what_a_rule_has_found_in_an_earlier_fit_tells_nothing_new():
    diagnosis = Diagnosis([Huge()])
    look(diagnosis, SICK)
    assert diagnosis.add_checked([fault("Huge", "a", step=20)], ["Huge"], 20) == []
    assert numbers_of(diagnosis) == [("Huge", 1, ("a",), 5, None)]
    assert diagnosis.findings[0].message == "a: gradient reaches 20."
    assert diagnosis.add_checked([], ["Huge"], 25) == [], "the rule still finds it"
    resumed = Diagnosis([Huge()])
    resumed.load_state_dict(json.loads(json.dumps(diagnosis.state_dict())))
    assert resumed.findings == diagnosis.findings
    other = Diagnosis([])
    other.load_state_dict(diagnosis.state_dict())
    assert [each.evidence[0].measured for each in other.findings] == [127.0], "without the rule, what the check found stays"


def test_a_finding_of_a_check_is_as_grave_as_the_rule_says_if_that_is_worse():
    diagnosis = Diagnosis([Huge(severity="critical")])
    diagnosis.add_checked([fault("Huge", "a"), fault()], [], 0)
    assert [each.severity for each in diagnosis.findings] == ["critical", "warning"]


def test_a_state_holds_them_and_damage_is_refused():
    diagnosis = Diagnosis([])
    diagnosis.add_checked([fault()], ["InputNotNormalised"], 0)
    state = json.loads(json.dumps(diagnosis.state_dict()))
    resumed = Diagnosis([])
    resumed.load_state_dict(state)
    assert resumed.findings == diagnosis.findings and resumed.add_checked([fault(step=5)], ["InputNotNormalised"], 5) == []
    state["groups"][0]["checked"]["severity"] = "huge"
    with pytest.raises(RuleError, match="the saved state is damaged: finding.severity must be one of"):
        Diagnosis([]).load_state_dict(state)


def test_a_reporter_writes_tells_and_acts_once(tmp_path):
    actions = {"critical": ["warn", "stop"]}
    reporter, outlet, context = started(tmp_path, Huge(), actions=actions)
    for step in (0, 4):
        reporter.add_checked([fault(step=step, severity=Severity.CRITICAL)], ["InputNotNormalised"], step)
    assert outlet.blocks == [
        "CRITICAL: InputNotNormalised, since step 0. fc: the input has a mean of 127\n"
        "  Next  Divide it.\n"
        "  More  lightning-hooks explain InputNotNormalised"
    ]
    assert context.reasons == ["fc: the input has a mean of 127"] and "far from mean 0" in outlet.markdown
    consume(reporter, views(SICK, first=5))
    lines = [json.loads(line) for line in (tmp_path / "findings.jsonl").read_text().splitlines()]
    assert [line["event"] for line in lines][:2] == ["begin", "new"] and lines[1]["finding"]["rule"] == "InputNotNormalised"
