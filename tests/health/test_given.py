"""Findings that another instrument gives: their numbers, when they are over, and that a resumed fit knows them."""

import json

import pytest

from lightning_hooks.errors import RuleError
from lightning_hooks.health.engine import Diagnosis
from lightning_hooks.health.finding import Finding
from lightning_hooks.health.rule import Severity, Symptom
from tests.health.outlets_for_tests import SICK, consume, started, views
from tests.health.rules_for_tests import Huge


def fault(check="InputScale", row="fc", step=0, severity=Severity.WARNING):
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
    assert kinds(diagnosis.add_given([fault()], ["InputScale"], 0)) == [("new", 0, "InputScale/fc", 1)]
    assert diagnosis.add_given([fault(step=7)], ["InputScale"], 7) == []
    (finding,) = diagnosis.findings
    assert (finding.first_step, finding.last_step, finding.is_over) == (0, 7, None)
    assert diagnosis.add_given([], [], 9) == [], "the check was skipped, so the fault may still be there"
    assert kinds(diagnosis.add_given([], ["InputScale"], 12)) == [("over", 12, "InputScale/fc", 1)]
    assert diagnosis.add_given([], ["InputScale"], 13) == [] and diagnosis.findings[0].is_over == 12
    assert kinds(diagnosis.add_given([fault(step=20)], ["InputScale"], 20)) == [("again", 20, "InputScale/fc", 1)]
    assert diagnosis.findings[0].is_over is None and diagnosis.findings[0].first_step == 0


def test_findings_of_rules_and_given_ones_share_their_numbers_and_stay_apart():
    diagnosis = Diagnosis([Huge()])
    diagnosis.add_given([fault("Huge", "a")], ["Huge"], 0)
    for view in views(SICK):
        diagnosis.add(view)
    diagnosis.add_given([fault("Huge", "a", step=20), fault(step=20)], ["Huge"], 20)
    assert [(each.rule, each.number, each.first_step) for each in diagnosis.findings] == [
        ("Huge", 1, 0),
        ("Huge", 2, 5),
        ("InputScale", 3, 20),
    ]


def test_a_state_holds_them_and_damage_is_refused():
    diagnosis = Diagnosis([])
    diagnosis.add_given([fault()], ["InputScale"], 0)
    state = json.loads(json.dumps(diagnosis.state_dict()))
    resumed = Diagnosis([])
    resumed.load_state_dict(state)
    assert resumed.findings == diagnosis.findings and resumed.add_given([fault(step=5)], ["InputScale"], 5) == []
    state["groups"][0]["given"]["severity"] = "huge"
    with pytest.raises(RuleError, match="the saved state is damaged: finding.severity must be one of"):
        Diagnosis([]).load_state_dict(state)


def test_a_reporter_writes_tells_and_acts_once(tmp_path):
    actions = {"critical": ["warn", "stop"]}
    reporter, outlet, context = started(tmp_path, Huge(), actions=actions)
    for step in (0, 4):
        reporter.add_given([fault(step=step, severity=Severity.CRITICAL)], ["InputScale"], step)
    assert outlet.blocks == [
        "CRITICAL: InputScale, since step 0. fc: the input has a mean of 127\n"
        "  Why   fc, step 0: the input has a mean of 127\n"
        "  Next  Divide it."
    ]
    assert context.reasons == ["fc: the input has a mean of 127"] and "InputScale" in outlet.markdown
    consume(reporter, views(SICK, first=5))
    lines = [json.loads(line) for line in (tmp_path / "findings.jsonl").read_text().splitlines()]
    assert [line["event"] for line in lines][:2] == ["begin", "new"] and lines[1]["finding"]["rule"] == "InputScale"
