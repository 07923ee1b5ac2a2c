"""Outcomes of a fit: each finding, and each rule that found nothing, could not look or was switched off."""

from __future__ import annotations

from typing import Any

import pytest

from lightning_hooks.health.finding import Cause, Finding
from lightning_hooks.health.journal import RunFindings
from lightning_hooks.health.outcome import outcome_of_finding, report_of_run
from lightning_hooks.health.rule import Severity
from tests.cli.written_fits import cause, finding

SUMMARY: dict[str, Any] = {
    "ran": ["DeadUnits", "LossSpike", "NonFinite"],
    "could_not_run": {"UnitCollapse": "no row has `output`"},
    "failed": {"Mine": "ValueError: no"},
}


def known(*findings: Finding, causes: tuple[Cause, ...] = (), ended: bool = True, summary: Any = SUMMARY) -> RunFindings:
    return RunFindings([*findings], [*causes], [], summary, has_ended=ended, fit=1)


def report(run: RunFindings) -> Any:
    return report_of_run("runs/a", run, run.findings)


def test_every_rule_has_an_outcome() -> None:
    made = report(known(finding(1), finding(2, row="head")))
    assert [(each.rule, each.status, each.message) for each in made.outcomes] == [
        ("DeadUnits", "failed", "fc: dead."),
        ("DeadUnits", "failed", "head: dead."),
        ("LossSpike", "passed", ""),
        ("NonFinite", "passed", ""),
        ("UnitCollapse", "skipped", "no row has `output`"),
        ("Mine", "broken", "ValueError: no"),
    ]
    assert made.name == "runs/a" and made.problem == ""


@pytest.mark.parametrize(
    ("options", "status"),
    [
        ({"severity": Severity.CRITICAL}, "failed"),
        ({"severity": Severity.WARNING}, "failed"),
        ({"severity": Severity.INFO}, "noted"),
        ({"severity": Severity.CRITICAL, "is_over": 40}, "noted"),
    ],
    ids=["critical", "warning", "info", "over"],
)
def test_what_fails_is_what_gives_the_exit_code_1(options: dict[str, Any], status: str) -> None:
    outcome = outcome_of_finding(finding(**options))
    assert (outcome.status, outcome.severity) == (status, options["severity"])
    assert outcome.message == ("fc: dead. Over since step 40." if "is_over" in options else "fc: dead.")


def test_a_cause_comes_before_the_symptoms_and_its_steps_before_those_of_the_rule() -> None:
    steps = ("Use `LeakyReLU`.", "Lower the rate.")
    why = Cause("LearningRateTooHigh", "Steps are too large.", ("DeadUnits/fc",), ("Lower the rate.",), "likely")
    outcome = outcome_of_finding(finding(next_steps=steps), why)
    assert outcome.text().splitlines() == [
        "fc: dead.",
        "Cause: LearningRateTooHigh (likely). Steps are too large.",
        "fc, step 20: 90 % of the units are dead",
        "Next: Lower the rate.",
        "Next: Use `LeakyReLU`.",
    ]
    assert outcome.rows == ("fc",)


def test_a_cause_is_that_of_the_finding_by_its_number() -> None:
    made = report(known(finding(1), finding(2, "LossSpike", ""), causes=(cause(2),)))
    assert [each.reasons[0].startswith("Cause: BadBatch") for each in made.outcomes[:2]] == [False, True]
    assert made.outcomes[1].rows == ()  # the whole run has no row


def test_a_fault_that_only_its_check_could_find_has_one_outcome() -> None:
    found = finding(1, "UnitCollapse", "gate")
    assert [each.status for each in report(known(found)).outcomes if each.rule == "UnitCollapse"] == ["failed"]


@pytest.mark.parametrize(
    ("run", "problem"),
    [
        (known(ended=False, summary=None), "The fit has not ended, or was killed: which rules found nothing is not known."),
        (known(summary=None), "The summary of the fit is missing: which rules found nothing is not known."),
        (
            known(summary={"ran": [], "stopped": "KeyError: x"}),
            "The health rules stopped after KeyError: x: nothing is known of the steps after that.",
        ),
        (known(summary={"ran": 3, "could_not_run": [], "failed": None}), ""),
    ],
    ids=["killed", "missing", "stopped", "damaged"],
)
def test_what_is_incomplete_says_so(run: RunFindings, problem: str) -> None:
    assert (report(run).outcomes, report(run).problem) == ((), problem)
