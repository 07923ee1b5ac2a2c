"""JUnit XML: outcomes as test cases, in the form that GitLab, Jenkins and the readers of GitHub share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from xml.etree import ElementTree

from lightning_hooks.errors import printable
from lightning_hooks.health.outcome import Outcome, Report

_COUNTED: Final = {"failures": "failed", "errors": "broken", "skipped": "skipped"}
_TAGS: Final = {"failed": "failure", "broken": "error"}


def junit_of(reports: Iterable[Report], group: str) -> str:
    """Reports as JUnit XML: one suite for each run, and in it one test case for each rule.

    If a rule has several failures, they are in one element, since some readers show only the first. A note is the output of
    a case that passed.

    Args:
        reports: the outcomes of each run.
        group: the `classname` of the cases, by which readers group them.

    Example:
        >>> print(junit_of([Report("runs/a", (Outcome("LossSpike", "passed"),))], "findings"))
        <?xml version="1.0" encoding="utf-8"?>
        <testsuites name="lightning-hooks" tests="1" failures="0" errors="0" skipped="0">
          <testsuite name="runs/a" tests="1" failures="0" errors="0" skipped="0">
            <testcase classname="findings" name="LossSpike" time="0" />
          </testsuite>
        </testsuites>
    """
    root = ElementTree.Element("testsuites", {"name": "lightning-hooks"})
    root.extend(_suite(report, group) for report in reports)
    root.attrib.update({each: str(sum(int(suite.get(each, 0)) for suite in root)) for each in ("tests", *_COUNTED)})
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{ElementTree.tostring(root, encoding="unicode")}'


def _suite(report: Report, group: str) -> ElementTree.Element:
    by_rule: dict[str, list[Outcome]] = {}
    for outcome in report.outcomes:
        by_rule.setdefault(outcome.rule, []).append(outcome)
    cases = [_case(name, outcomes, group) for name, outcomes in by_rule.items()]
    counts = {"tests": str(len(cases))}
    for attribute, status in _COUNTED.items():
        tag = _TAGS.get(status, status)
        counts[attribute] = str(sum(case.find(tag) is not None for case in cases))
    suite = ElementTree.Element("testsuite", {"name": printable(report.name), **counts})
    suite.extend(cases)
    if report.problem:
        ElementTree.SubElement(suite, "system-err").text = printable(report.problem)
    return suite


def _case(name: str, outcomes: list[Outcome], group: str) -> ElementTree.Element:
    case = ElementTree.Element("testcase", {"classname": group, "name": printable(name), "time": "0"})
    for status, tag in _TAGS.items():
        told = [outcome for outcome in outcomes if outcome.status == status]
        if told:
            more = f" (and {len(told) - 1} more)" if len(told) > 1 else ""
            attributes = {"message": printable(f"{told[0].message}{more}"), "type": str(told[0].severity)}
            ElementTree.SubElement(case, tag, attributes).text = _texts(told)
    skipped = [outcome for outcome in outcomes if outcome.status == "skipped"]
    if skipped and len(case) == 0:
        ElementTree.SubElement(case, "skipped", {"message": printable(skipped[0].message)})
    notes = [outcome for outcome in outcomes if outcome.status == "noted"]
    if notes:
        ElementTree.SubElement(case, "system-out").text = _texts(notes)
    return case


def _texts(outcomes: list[Outcome]) -> str:
    return "\n\n".join(printable(outcome.text(), keep="\n") for outcome in outcomes)
