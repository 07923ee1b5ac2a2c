"""Findings and causes: what is wrong since when, and what most likely explains it. Plain values that JSON can hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Final, Literal

from lightning_hooks.codec import decode, encode, saved_as
from lightning_hooks.errors import RuleError
from lightning_hooks.explained import command_for
from lightning_hooks.health.rule import Severity, Symptom

Confidence = Literal["certain", "likely", "possible"]
EventKind = Literal["new", "grown", "again", "raised", "over", "known", "cause", "withdrawn", "begin", "end"]


@dataclass(frozen=True)
class Finding:
    """A rule's condition has held at some rows for as long as the rule asks.

    Args:
        rule: the name of the rule.
        rows: the names of modules or parameters, the earliest and worst first; one empty name for the whole run.
        tensor: the tensor of the first row; empty for facts.
        first_step: the step since which the condition holds.
        last_step: the last step at which it was seen.
        severity: of the rule; `info` for a pattern as long as no harm is measured.
        evidence: some of the symptoms, the clearest first.
        message: what follows.
        next_steps: what to try.
        fingerprint: the rule and its rows, the same in every run: `DeadUnits/encoder.*`.
        source: where the thresholds are from.
        cause: the name of the cause that explains the finding; None if it stands alone.
        is_over: the step from which the condition holds no longer; None while it holds.
        number: of the finding in its run; it stays when the finding grows.
        tensors: all tensors at which the condition was seen; empty for facts.
        harm: the harm that was measured in the run while a pattern held, with the step; empty for facts and without harm.
        learning: of a finding on learning, the last losses, the learning rate and the size of the steps when it was found.
        line: of a finding on the loss, the line of the user's code at which the loss is computed; empty if it is not known.

    Example:
        >>> symptom = Symptom("fc", tensor="output", step=30, measured=0.9, threshold=0.5, text="90 % of the units are dead")
        >>> finding = Finding(
        ...     "DeadUnits",
        ...     rows=("fc",),
        ...     tensor="output",
        ...     first_step=20,
        ...     last_step=30,
        ...     severity=Severity.WARNING,
        ...     evidence=(symptom,),
        ...     message="fc: 90 % …",
        ... )
        >>> finding.fingerprint, Finding.from_dict(finding.to_dict()) == finding
        ('DeadUnits/fc', True)
    """

    rule: str
    _: KW_ONLY
    rows: tuple[str, ...]
    tensor: str
    first_step: int
    last_step: int
    severity: Severity
    evidence: tuple[Symptom, ...]
    message: str
    next_steps: tuple[str, ...] = ()
    fingerprint: str = ""
    source: str = ""
    cause: str | None = None
    is_over: int | None = None
    number: int = 0
    tensors: tuple[str, ...] = ()
    harm: str = ""
    learning: str = ""
    line: str = ""

    def __post_init__(self) -> None:
        if not self.fingerprint:
            object.__setattr__(self, "fingerprint", fingerprint_of(self.rule, self.rows))

    def to_dict(self) -> dict[str, Any]:
        """The finding as plain values."""
        plain: dict[str, Any] = encode(self)
        return plain

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Finding:
        """The finding of `to_dict`.

        Raises:
            RuleError: a field is missing or damaged; the message names the field.
        """
        return decode(cls, values, "finding")


def stands(finding: Finding) -> bool:
    """Whether a finding makes a run unhealthy: it is a warning or worse, and is not over."""
    return finding.severity is not Severity.INFO and finding.is_over is None


@dataclass(frozen=True)
class Cause:
    """The most likely reason of several findings.

    Args:
        name: for example `LearningRateTooHigh`.
        message: what is wrong, and how sure that is.
        findings: the fingerprints of the findings that it explains, the decisive ones first.
        next_steps: what to try.
        confidence: `certain` if facts say so, `likely` if findings of two kinds agree, else `possible`.
        alternatives: other explanations, each with how to tell it apart.
        severity: the worst of its findings.
        first_step: the earliest of its findings.
        numbers: the numbers of the findings, in the order of `findings`.
        replaces: the names of the causes that explained some of these findings before, and were withdrawn for this one.

    Example:
        >>> cause = Cause("BadBatch", "One batch differs from all others.", ("LossSpike",))
        >>> Cause.from_dict(cause.to_dict()) == cause
        True
    """

    name: str
    message: str
    findings: tuple[str, ...]
    next_steps: tuple[str, ...] = ()
    confidence: Confidence = "possible"
    alternatives: tuple[str, ...] = ()
    severity: Severity = Severity.WARNING
    first_step: int = 0
    numbers: tuple[int, ...] = ()
    replaces: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The cause as plain values."""
        plain: dict[str, Any] = encode(self)
        return plain

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Cause:
        """The cause of `to_dict`.

        Raises:
            RuleError: a field is missing or damaged; the message names the field.
        """
        return decode(cls, values, "cause")


@dataclass(frozen=True)
class Event:
    """Something that a look found, or the begin or end of a fit.

    Args:
        kind: of a finding `new`, `grown` (it has more rows), `raised` (harm was measured, so that a note became a warning or
            worse), `over`, `again` (it was over), `known` (a resumed fit has it from its checkpoint); of a cause `cause` (it is
            new, or its findings or confidence changed) or `withdrawn` (later findings contradict it); `begin` or `end` of a
            fit.
        step: the step of the look; of a begin, the first step of the fit.
        finding: the finding; None for other kinds.
        cause: the cause; None for other kinds.
        time: of a begin, in seconds since 1970; None for other kinds, and if it is not known.
    """

    kind: EventKind = field(metadata=saved_as("event"))
    step: int
    finding: Finding | None = field(default=None, metadata=saved_as(or_absent=True))
    cause: Cause | None = field(default=None, metadata=saved_as(or_absent=True))
    time: float | None = field(default=None, metadata=saved_as(or_absent=True))

    def to_dict(self) -> dict[str, Any]:
        """The event as plain values; with `more`, the command that explains a rule or cause, where it is told first."""
        plain: dict[str, Any] = encode(self)
        name = self.cause.name if self.cause is not None else self.finding.rule if self.finding is not None else ""
        more = command_for(name) if self.kind in ("new", "cause") else ""
        return {**plain, "more": more} if more else plain

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Event:
        """The event of `to_dict`.

        Raises:
            RuleError: a field is missing or damaged; the message names the field.
        """
        event = decode(cls, values, "event")
        subject = _SUBJECTS.get(event.kind, "finding")
        if subject and getattr(event, subject) is None:
            raise RuleError(f"event has no {subject!r}")
        return event


_SUBJECTS: Final[Mapping[EventKind, str]] = {"cause": "cause", "withdrawn": "cause", "begin": "", "end": ""}
"""What an event of each kind is about: the finding for all others."""


def fingerprint_of(rule: str, rows: Sequence[str]) -> str:
    """The rule and its rows in grouped form.

    Example:
        >>> fingerprint_of("DeadUnits", ["encoder.3", "encoder.12"]), fingerprint_of("LossSpike", [""])
        ('DeadUnits/encoder.*', 'LossSpike')
    """
    if len(rows) == 1:
        return f"{rule}/{rows[0]}" if rows[0] else rule
    parts = [row.split(".") for row in rows]
    common = []
    for column in zip(*(each[:-1] for each in parts), strict=False):
        if len(set(column)) > 1:
            break
        common.append(column[0])
    return f"{rule}/{'.'.join([*common, '*'])}"


def symptom_to_dict(symptom: Symptom) -> dict[str, Any]:
    """A symptom as plain values."""
    plain: dict[str, Any] = encode(symptom)
    return plain


def symptom_from_dict(values: Any) -> Symptom:
    """The symptom of `symptom_to_dict`; raises RuleError if a field is damaged."""
    return decode(Symptom, values, "symptom")


def problems_of(findings: Sequence[Finding], causes: Sequence[Cause]) -> list[str]:
    """The names of what is wrong: those of causes, then those of findings above `info` that no cause explains.

    All findings of one cause are one problem, and so is one rule at the same rows at different times.

    Args:
        findings: notes among them are no problems.
        causes: of the run; one that explains none of the findings is no problem.
    """
    worse = [finding for finding in findings if finding.severity is not Severity.INFO]
    explained = {number for cause in causes for number in cause.numbers}
    told = [cause.name for cause in causes if any(finding.number in cause.numbers for finding in worse)]
    alone = [finding.fingerprint for finding in worse if finding.number not in explained]
    return list(dict.fromkeys([*told, *alone]))
