"""JUnit: one case for each rule, in the elements and attributes that GitLab, Jenkins and readers of GitHub use."""

from __future__ import annotations

from xml.etree import ElementTree

from lightning_hooks.health.junit import junit_of
from lightning_hooks.health.outcome import Outcome, Report
from lightning_hooks.health.rule import Severity

DEAD = Outcome(
    "DeadUnits",
    "failed",
    "net.fc, then 1 more: dead.",
    Severity.WARNING,
    ("net.fc", "head"),
    ("net.fc, step 20: 90 % of the units are dead",),
    ("Lower the rate.",),
)
OTHERS = (
    Outcome("NonFinite", "failed", "The loss is NaN.", Severity.CRITICAL),
    Outcome("ClippingAlways", "noted", "Clipping acts at {0} and {x}\x1b.", Severity.INFO),
    Outcome("LossSpike", "passed"),
    Outcome("UnitCollapse", "skipped", "no row has `output`"),
    Outcome("Mine", "broken", "ValueError: no"),
)


def suite_of(*outcomes: Outcome, problem: str = "") -> ElementTree.Element:
    text = junit_of([Report("runs/a", outcomes, problem)], "lightning_hooks.findings")
    assert text.startswith('<?xml version="1.0" encoding="utf-8"?>\n<testsuites ')
    root = ElementTree.fromstring(text)
    (suite,) = root
    assert root.attrib == {**suite.attrib, "name": "lightning-hooks"}
    return suite


def case_of(suite: ElementTree.Element, name: str) -> ElementTree.Element:
    (case,) = [each for each in suite if each.get("name") == name]
    assert case.attrib == {"classname": "lightning_hooks.findings", "name": name, "time": "0"}
    return case


def test_the_suite_counts_its_cases() -> None:
    suite = suite_of(DEAD, *OTHERS)
    assert suite.attrib == {"name": "runs/a", "tests": "6", "failures": "2", "errors": "1", "skipped": "1"}
    kinds = {case.get("name"): [each.tag for each in case] for case in suite}
    assert kinds == {
        "DeadUnits": ["failure"],
        "NonFinite": ["failure"],
        "ClippingAlways": ["system-out"],
        "LossSpike": [],
        "UnitCollapse": ["skipped"],
        "Mine": ["error"],
    }


def test_each_run_is_a_suite_and_the_root_has_the_sums() -> None:
    root = ElementTree.fromstring(junit_of([Report("runs/a", (DEAD,)), Report("runs/b", OTHERS)], "lightning_hooks.findings"))
    assert [(suite.get("name"), suite.get("tests")) for suite in root] == [("runs/a", "1"), ("runs/b", "5")]
    assert root.attrib == {"name": "lightning-hooks", "tests": "6", "failures": "2", "errors": "1", "skipped": "1"}


def test_a_failure_has_its_message_level_and_reasons() -> None:
    (failure,) = case_of(suite_of(DEAD), "DeadUnits")
    assert failure.attrib == {"message": "net.fc, then 1 more: dead.", "type": "warning"}
    assert failure.text == DEAD.text()


def test_several_failures_of_a_rule_are_one_element_and_its_notes_are_output() -> None:
    again, note = DEAD._replace(message="head: dead."), DEAD._replace(status="noted", message="old: dead. Over since step 9.")
    suite = suite_of(DEAD, again, note)
    assert (suite.get("tests"), suite.get("failures")) == ("1", "1")
    failure, output = case_of(suite, "DeadUnits")
    assert failure.get("message") == "net.fc, then 1 more: dead. (and 1 more)"
    assert failure.text == f"{DEAD.text()}\n\n{again.text()}"
    assert output.tag == "system-out" and output.text == note.text()


def test_a_skip_has_its_reason() -> None:
    (skipped,) = case_of(suite_of(*OTHERS), "UnitCollapse")
    assert skipped.attrib == {"message": "no row has `output`"} and skipped.text is None


def test_what_is_missing_is_said_in_the_suite() -> None:
    assert suite_of(DEAD, problem="The fit has not ended.").findtext("system-err") == "The fit has not ended."


def test_every_name_gives_well_formed_xml() -> None:
    strange = DEAD._replace(rule='<a href="x">&\x00\x1b\ud800', message='"<&>\x08\nsecond line')
    (case,) = suite_of(strange)
    assert case.get("name") == '<a href="x">&\\x00\\x1b\\ud800'
    assert case[0].get("message") == '"<&>\\x08\\nsecond line'
