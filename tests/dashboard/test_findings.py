"""The rows of the page's table of findings, from the events that a HealthMonitor writes."""

from lightning_hooks.dashboard.findings import rows_of_findings
from lightning_hooks.dashboard.source import LocalRun
from lightning_hooks.health.finding import Event, Finding
from lightning_hooks.health.journal import Journal
from lightning_hooks.health.rule import Severity, Sign


def finding(number, rule="DeadLayer", severity=Severity.WARNING, **fields):
    signs = (Sign("fc", "output", 7, 1.0, 1.0, "every element is 0"),)
    common = {"rows": ("fc",), "tensor": "output", "first_step": 7, "last_step": 19, "message": "fc: every element is 0."}
    about = {"rule": rule, "severity": severity, "evidence": signs, "next_steps": ("Look.",), "number": number}
    return Finding(**{**about, **common, **fields})


def test_the_last_event_of_each_finding_is_a_row_and_the_worst_is_first(tmp_path):
    journal = Journal(tmp_path)
    first, second = finding(0), finding(1, "NonFinite", Severity.CRITICAL, rows=(), tensor="loss")
    journal.write([Event("new", 19, first), Event("new", 20, second)])
    journal.write([Event("over", 40, finding(0, is_over=30))])
    journal.close()
    worst, other = LocalRun(tmp_path).findings()
    assert (worst["rule"], worst["name"], worst["severity"]) == ("NonFinite", "", "critical")
    assert other["verdict"] == "DeadLayer: fc: every element is 0. Over since step 30."
    assert (other["tensor"], other["name"], other["step"], other["why"], other["next"]) == (
        ("output", "fc", 7, "every element is 0", "Look.")
    )


def test_another_fit_begins_without_the_findings_of_the_last_one():
    old = {"kind": "new", "step": 3, "finding": finding(0).to_dict()}
    assert rows_of_findings([{"kind": "begin", "step": 0}, old]) and not rows_of_findings([old, {"kind": "begin", "step": 0}])


def test_objects_of_any_form_are_rows_or_are_left_out():
    assert rows_of_findings([{"rule": "NonFinite", "name": None, "why": ["x"]}]) == [{"rule": "NonFinite"}]
    assert rows_of_findings([{"kind": "new", "finding": 3}, {"kind": "cause", "cause": {}}]) == []
    odd = {"number": 0, "rows": 3, "evidence": [1, {}], "next_steps": None, "first_step": "x", "rule": None}
    assert rows_of_findings([{"kind": "new", "finding": odd}])[0]["verdict"] == "None: "
