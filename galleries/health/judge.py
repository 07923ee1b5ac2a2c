"""Runs a training of the gallery with the health rules, and judges what they said."""

from __future__ import annotations

import fnmatch
import io
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback

from galleries.health.training import Training, fit
from lightning_hooks import HealthMonitor, StatsMonitor
from lightning_hooks.health import Finding, Severity

WITHIN: Mapping[str, int] = {"fact": 5, "pattern": 60}
"""The steps after the onset within which a fault has to be found."""


@dataclass(frozen=True)
class Verdict:
    """What the rules said of one training at one seed.

    Args:
        training: the training.
        seed: its seed.
        findings: all findings, each with the step at which it was told.
        causes: the names of the causes at the end.
        error: the error that ended the training; empty if there was none.
    """

    training: Training
    seed: int
    findings: tuple[tuple[Finding, int], ...]
    causes: tuple[str, ...]
    error: str = ""

    @property
    def alarms(self) -> list[tuple[Finding, int]]:
        """The findings above information."""
        return [(finding, step) for finding, step in self.findings if finding.severity is not Severity.INFO]

    @property
    def naming(self) -> list[tuple[Finding, int]]:
        """The findings that name the fault: one of its rules, at one of its rows, at or after the onset."""
        expected = self.training.expects
        if expected is None:
            return []
        return [
            (finding, step)
            for finding, step in self.findings
            if finding.rule in expected.rules
            and step >= expected.onset
            and any(expected.rows == "*" or fnmatch.fnmatchcase(row, expected.rows) for row in finding.rows)
        ]

    @property
    def delay(self) -> int | None:
        """The steps from the onset until a finding named the fault; None if none did."""
        expected = self.training.expects
        return min((step - expected.onset for _, step in self.naming), default=None) if expected else None

    @property
    def is_found(self) -> bool:
        """Whether a finding named the fault at all."""
        return self.delay is not None

    @property
    def is_in_time(self) -> bool:
        """Whether it did so within the steps that its kind allows."""
        expected = self.training.expects
        return expected is not None and self.delay is not None and self.delay <= WITHIN.get(expected.kind, 10**9)

    @property
    def is_note(self) -> bool:
        """Whether the fault was named in notes only, because its training shows no harm: then it has no cause."""
        return self.is_found and all(finding.severity is Severity.INFO for finding, _ in self.naming)

    @property
    def has_cause(self) -> bool:
        """Whether the right cause was told, or none is expected."""
        expected = self.training.expects
        return expected is not None and (expected.cause is None or expected.cause in self.causes or self.is_note)


class Told:
    """Keeps each new finding with the step at which it was told."""

    def __init__(self) -> None:
        self.findings: list[tuple[Finding, int]] = []
        self.monitor: HealthMonitor | None = None

    def __call__(self, finding: Finding) -> None:
        assert self.monitor is not None and self.monitor._job.reporter is not None
        self.findings.append((finding, self.monitor._job.reporter.diagnosis.evidence.step))


def callbacks_of(told: Told, rules: Any = None) -> list[Callback]:
    """A monitor of every row, and one that diagnoses it."""
    action = {"call": told}
    told.monitor = HealthMonitor(rules, actions={severity.value: action for severity in Severity})
    return [StatsMonitor(loggers=[]), told.monitor]


def judge(training: Training, seed: int, folder: Path, rules: Any = None) -> Verdict:
    """Run a training with one process and judge it.

    Args:
        training: the training.
        seed: its seed.
        folder: for files.
        rules: as of `HealthMonitor`.
    """
    told = Told()
    callbacks = callbacks_of(told, rules)
    error = ""
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        try:
            fit(training, seed, callbacks, folder)
        except Exception as failure:
            error = f"{type(failure).__name__}: {failure}"
    assert told.monitor is not None
    final = {finding.number: finding for finding in told.monitor.findings}
    findings = tuple((final.get(finding.number, finding), step) for finding, step in told.findings)
    return Verdict(training, seed, findings, tuple(cause.name for cause in told.monitor.causes), error)
