"""What a HealthMonitor wrote, as the page lists it: causes first, then findings, each as it stands in the end."""

import json

from lightning_hooks.dashboard.findings import checks_of, has_ended, shown_findings, shown_summary
from lightning_hooks.health.finding import Cause, Event, Finding
from lightning_hooks.health.rule import Severity, Symptom

SYMPTOM = Symptom("net.0", tensor="grad", step=7, measured=20.0, threshold=10.0, text="gradient reaches 20")
DEAD = Finding(
    "DeadUnits",
    rows=("net.0", "net.2"),
    tensor="output",
    first_step=5,
    last_step=9,
    severity=Severity.WARNING,
    evidence=(SYMPTOM,),
    message="net.0, then 1 more: dead.",
    number=1,
)
LOSS = Finding(
    "NonFinite",
    rows=("", "net.2"),
    tensor="loss",
    first_step=8,
    last_step=8,
    severity=Severity.CRITICAL,
    evidence=(SYMPTOM,),
    message="Not finite.",
    next_steps=("Look.", "Stop."),
    number=2,
)
CAUSE = Cause(
    "BadBatch", "One batch differs.", ("DeadUnits/net.*",), ("Drop it.",), "possible", ("Or not.",), Severity.WARNING, 5, (1,)
)


def lines(*events):
    return "".join(json.dumps(event if isinstance(event, dict) else event.to_dict()) + "\n" for event in events)


def test_each_finding_and_cause_is_listed_once_the_worst_first():
    grown = Finding(**{**vars(DEAD), "last_step": 40, "is_over": 41, "cause": "BadBatch"})
    text = lines(Event("new", 9, DEAD), Event("cause", 9, cause=CAUSE), Event("new", 9, LOSS), Event("over", 41, grown))
    cause, worst, over = shown_findings(text)
    assert cause == {
        "kind": "cause",
        "rule": "BadBatch",
        "severity": "warning",
        "confidence": "possible",
        "message": "One batch differs.",
        "verdict": "BadBatch (possible). One batch differs.",
        "why": "DeadUnits",
        "next": "Drop it.",
        "next_steps": ["Drop it."],
        "alternatives": ["Or not."],
        "more": "lightning-hooks explain BadBatch",
        "numbers": [1],
        "step": 5,
    }
    assert worst["verdict"] == "NonFinite. Not finite." and worst["next"] == "Look. Stop." and worst["severity"] == "critical"
    assert "name" not in worst and "tensor" not in worst
    assert worst["seen"] == {"name": "net.0", "tensor": "grad", "step": 7} and "seen" not in over
    assert over["accept"] == ["DeadUnits/net.0", "DeadUnits/net.2"] and worst["accept"] == ["NonFinite", "NonFinite/net.2"]
    assert (worst["rows"], over["rows"]) == (["", "net.2"], ["net.0", "net.2"])
    assert (over["name"], over["tensor"], over["step"], over["why"]) == ("net.0", "output", 5, "gradient reaches 20")
    assert (over["number"], over["over"]) == (1, 41)
    assert over["evidence"] == [{"row": "net.0", "step": 7, "text": "gradient reaches 20"}] and over["kind"] == "finding"
    assert worst["next_steps"] == ["Look.", "Stop."]
    assert over["verdict"] == "DeadUnits. net.0, then 1 more: dead. Over since step 41."


def test_a_cause_that_was_withdrawn_is_not_listed():
    text = lines(Event("new", 9, DEAD), Event("cause", 9, cause=CAUSE), Event("withdrawn", 20, cause=CAUSE))
    assert [each["rule"] for each in shown_findings(text)] == ["DeadUnits"]


def test_the_tensor_has_the_prefix_of_the_monitor_whose_table_the_run_has():
    (shown,) = shown_findings(lines(Event("new", 9, DEAD)), ["health/output", "health/output_grad"])
    assert shown["tensor"] == "health/output"


def test_lines_of_others_are_listed_as_they_are_and_damaged_ones_are_not():
    other = {"rule": "Mine", "step": 3, "name": None, "nested": [1]}
    damaged = {"event": "new", "step": 9, "finding": {"rule": "DeadUnits"}}
    text = lines(other, damaged, {"event": "cause", "step": 1}) + '{"half'
    assert shown_findings(text) == [{"rule": "Mine", "step": 3}]


def test_a_summary_says_which_rules_looked_and_what_they_found():
    ran = {"ran": ["DeadUnits", 3], "could_not_run": {"Underflow": "no float16"}, "steps": 9}
    known = {"ran": ["DeadUnits"], "could_not_run": {"Underflow": "no float16"}, "failed": {}, "accepted": [], "steps": 9}
    known |= {"has_learned": False, "course": ""}
    assert checks_of({**ran, "failed": [], "error": None}) == known
    assert checks_of({**ran, "error": "KeyboardInterrupt: "}) == {**known, "error": "KeyboardInterrupt: "}
    learned = {"has_learned": True, "course": "the loss went from 2.3 to 0.7"}
    assert checks_of({**ran, **learned}) == {**known, **learned}
    assert checks_of({}) is None and checks_of({"ran": "all"}) is None
    assert checks_of({**ran, "has_ended": False}) is None and shown_summary({}) is None
    found = shown_summary({**ran, "findings": [DEAD.to_dict()], "causes": [CAUSE.to_dict()]})
    assert [each["rule"] for each in found] == ["BadBatch", "DeadUnits"]
    assert shown_summary({**ran, "findings": [{"rule": "DeadUnits"}]}) == []


def test_a_file_whose_last_fit_goes_on_has_not_ended():
    begin, end = Event("begin", 0), Event("end", 9)
    assert has_ended("") and has_ended(lines(begin, end)) and has_ended(lines({"rule": "Mine"}))
    assert not has_ended(lines(begin, end, begin)) and not has_ended(lines(begin) + '{"half')
