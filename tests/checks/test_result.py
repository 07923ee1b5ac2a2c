import json
import math

from lightning_hooks import CheckReport, CheckResult

FAIL = CheckResult(
    "NoGradient",
    status="fail",
    rows=("a.weight", "a.bias"),
    message="a.weight, a.bias: no gradient",
    measured=0.0,
    threshold=0.0,
    next_steps=("Look.",),
)
WARN = CheckResult(
    "InputNotNormalised",
    status="warn",
    rows=("a",),
    message="a: the mean is large",
    measured=math.inf,
    threshold=10.0,
    next_steps=("Subtract.",),
    seconds=0.5,
)
PASS = CheckResult("FrozenMoves", status="pass", message="no parameter is frozen")
SKIP = CheckResult("InitialLoss", status="skip", message="no loss")


def test_a_report_counts_and_ends_with_its_verdict():
    report = CheckReport((FAIL, WARN, PASS, SKIP), notes=("eager",))
    assert str(report).splitlines() == [
        "FAIL  NoGradient          a.weight, a.bias: no gradient",
        "                          -> Look.",
        "                          -> More: lightning-hooks explain NoGradient",
        "WARN  InputNotNormalised  a: the mean is large",
        "                          -> Subtract.",
        "                          -> More: lightning-hooks explain InputNotNormalised",
        "PASS  FrozenMoves         no parameter is frozen",
        "SKIP  InitialLoss         no loss",
        "Note: eager",
        "1 failed, 1 warned, 1 passed, 1 skipped.",
    ]
    assert CheckReport(()).verdict == "no check ran"


SAID = "False: NoGradient: a.weight, a.bias: no gradient"


def test_ok_is_a_boolean_that_shows_the_report():
    report = CheckReport((FAIL, WARN))
    assert not report.ok and report.ok == False and repr(report.ok) == SAID  # noqa: E712
    assert str(report.ok) == str(report)
    passing = CheckReport((WARN, PASS))
    assert passing.ok and repr(passing.ok) == "True" and passing.ok == True  # noqa: E712


def test_json_holds_every_field():
    report = json.loads(CheckReport((FAIL, WARN)).to_json())
    assert report["ok"] is False and [each["check"] for each in report["results"]] == [FAIL.check, WARN.check]
    assert report["results"][1] == {
        "check": "InputNotNormalised",
        "status": "warn",
        "rows": ["a"],
        "message": "a: the mean is large",
        "measured": "inf",
        "threshold": 10.0,
        "next_steps": ["Subtract."],
        "fingerprint": "InputNotNormalised/a",
        "seconds": 0.5,
    }


def test_faults_are_findings_the_worst_first():
    findings = CheckReport((WARN, PASS, FAIL)).findings
    assert [(each.rule, each.severity, each.fingerprint) for each in findings] == [
        ("NoGradient", "critical", "NoGradient/a.*"),
        ("InputNotNormalised", "warning", "InputNotNormalised/a"),
    ]
    assert type(findings[0]).from_dict(findings[0].to_dict()) == findings[0]
