"""Results of checks and the report that holds them. Plain values, except for `Ok`, which shows a report in an assertion."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final, Literal, get_args

from lightning_hooks.checks.table import as_table
from lightning_hooks.codec import encode
from lightning_hooks.errors import listed
from lightning_hooks.health.finding import Finding, fingerprint_of
from lightning_hooks.health.row_names import user_names
from lightning_hooks.health.rule import Severity, Symptom

Status = Literal["pass", "warn", "fail", "skip"]
STATUSES: Final = get_args(Status)
_SEVERITIES: Final = {"fail": Severity.CRITICAL, "warn": Severity.WARNING}


@dataclass(frozen=True)
class CheckResult:
    """The result of one check.

    Args:
        check: the name of the check.
        status: `pass`, `warn`, `fail`, or `skip` if the check could not know.
        rows: the names of the modules, parameters or inputs concerned.
        message: what was found, or the reason why the check was skipped.
        measured: the number that decided; None if no number did.
        threshold: the number that it was compared with.
        next_steps: what to try, as imperative sentences.
        fingerprint: the check and its rows, the same in every run.
        seconds: that the check took.

    Example:
        >>> message = "0: the input has a mean of 127"
        >>> result = CheckResult(
        ...     "InputNotNormalised", status="warn", rows=("0",), message=message, measured=127.0, threshold=10.0
        ... )
        >>> result.fingerprint, result.finding.severity
        ('InputNotNormalised/0', 'warning')
    """

    check: str
    _: KW_ONLY
    status: Status
    rows: tuple[str, ...] = ()
    message: str = ""
    measured: float | None = None
    threshold: float | None = None
    next_steps: tuple[str, ...] = ()
    fingerprint: str = ""
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if not self.fingerprint:
            object.__setattr__(self, "fingerprint", fingerprint_of(self.check, self.rows or ("",)))

    @property
    def finding(self) -> Finding:
        """The result as a finding of step 0: critical for `fail`, a warning for `warn`, otherwise information."""
        measured, threshold = (math.nan if each is None else each for each in (self.measured, self.threshold))
        text = self.message.removeprefix(f"{listed(user_names(self.rows), 3)}: ")  # A symptom has its row beside the text.
        symptom = Symptom(
            self.rows[0] if self.rows else "", tensor="", step=0, measured=measured, threshold=threshold, text=text
        )
        severity = _SEVERITIES.get(self.status, Severity.INFO)
        rows = self.rows or ("",)
        return Finding(
            self.check,
            rows=rows,
            tensor="",
            first_step=0,
            last_step=0,
            severity=severity,
            evidence=(symptom,),
            message=self.message,
            next_steps=self.next_steps,
            fingerprint=self.fingerprint,
        )


@dataclass(frozen=True)
class CheckReport:
    """The results of all checks on one batch.

    Args:
        results: one for each check, in the order in which they ran.
        notes: about the whole check, for example that compiled modules ran eagerly.

    Example:
        >>> report = CheckReport((CheckResult("NonFinite", status="pass", message="3 outputs are finite"),))
        >>> bool(report.ok), report["NonFinite"].status
        (True, 'pass')
    """

    results: tuple[CheckResult, ...]
    _: KW_ONLY
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> Ok:
        """Whether no check failed. In a boolean context it is True or False; its `repr` says what failed."""
        return Ok(self)

    @property
    def findings(self) -> list[Finding]:
        """The results with the status `fail` or `warn` as findings, the worst first."""
        found = [each.finding for each in self.results if each.status in _SEVERITIES]
        return sorted(found, key=lambda finding: -finding.severity.rank)

    def __getitem__(self, check: str) -> CheckResult:
        for result in self.results:
            if result.check == check:
                return result
        raise KeyError(check)

    def __iter__(self) -> Iterator[CheckResult]:
        return iter(self.results)

    def __len__(self) -> int:
        return len(self.results)

    def of(self, status: Status) -> list[CheckResult]:
        """The results with a status."""
        return [each for each in self.results if each.status == status]

    @property
    def verdict(self) -> str:
        """How many checks have each status, in a line."""
        counts = [(len(self.of(status)), status) for status in ("fail", "warn", "pass", "skip")]
        names = {"fail": "failed", "warn": "warned", "pass": "passed", "skip": "skipped"}
        return ", ".join(f"{count} {names[status]}" for count, status in counts if count) or "no check ran"

    @property
    def table(self) -> str:
        """One line for each check, and what to try about those that warn or fail."""
        return as_table(self.results, self.notes)

    def __str__(self) -> str:
        return f"{self.table}\n{self.verdict}."

    def to_json(self, indent: int | None = 1) -> str:
        """The report as JSON.

        Args:
            indent: of each level, in spaces; None for one line.
        """
        return json.dumps(self.to_dict(), indent=indent)

    def to_dict(self) -> dict[str, Any]:
        """The report as values that JSON can hold."""
        return {"ok": bool(self.ok), "verdict": self.verdict, "notes": encode(self.notes), "results": encode(self.results)}


class Ok:
    """Whether a report has no failure: a boolean whose `repr` says what failed.

    Example:
        >>> CheckReport((CheckResult("FrozenMoves", status="fail", rows=("fc.bias",), message="fc.bias moved"),)).ok
        False: FrozenMoves: fc.bias moved
    """

    def __init__(self, report: CheckReport) -> None:
        self.report = report

    def __bool__(self) -> bool:
        return not self.report.of("fail")

    def __eq__(self, other: object) -> bool:
        return bool(self) == bool(other) if isinstance(other, (bool, Ok)) else NotImplemented

    def __hash__(self) -> int:
        return hash(bool(self))

    def __repr__(self) -> str:
        failed = [f"{each.check}: {each.message}" for each in self.report.of("fail")]
        return f"False: {'; '.join(failed)}" if failed else "True"

    def __str__(self) -> str:
        return str(self.report)
