"""Results of checks as outcomes: their status and their words."""

from __future__ import annotations

import math

from lightning_hooks.checks import CheckReport, CheckResult
from lightning_hooks.checks.outcomes import report_of_checks
from lightning_hooks.health.junit import junit_of

RESULTS = CheckReport(
    (
        CheckResult("StepRuns", status="pass", message="a step runs", seconds=0.1),
        CheckResult("FrozenMoves", status="fail", rows=("fc.bias",), message="fc.bias moved", next_steps=("Exclude it.",)),
        CheckResult(
            "InputNotNormalised", status="warn", rows=("0",), message="the mean is infinite", measured=math.inf, threshold=10.0
        ),
        CheckResult("SamplesApart", status="skip", message="the batch has one sample"),
    )
)


def test_a_warning_is_a_note_and_a_skip_has_its_reason() -> None:
    report = report_of_checks("config.yaml", RESULTS)
    assert [(each.rule, each.status, each.severity) for each in report.outcomes] == [
        ("StepRuns", "passed", "info"),
        ("FrozenMoves", "failed", "critical"),
        ("InputNotNormalised", "noted", "warning"),
        ("SamplesApart", "skipped", "info"),
    ]
    failed = report.outcomes[1]
    assert failed.rows == ("fc.bias",)
    assert failed.text() == "fc.bias moved\nNext: Exclude it."


def test_in_junit_a_failed_check_is_a_failure() -> None:
    text = junit_of([report_of_checks("config.yaml", RESULTS)], "lightning_hooks.check")
    assert 'tests="4" failures="1" errors="0" skipped="1"' in text
