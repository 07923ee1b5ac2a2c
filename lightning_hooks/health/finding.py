"""Findings and causes: what is wrong since when, and what most likely explains it. Plain values that JSON can hold."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass
from typing import Any, Final, Literal, get_args

from lightning_hooks.errors import RuleError, shown
from lightning_hooks.health.rule import Severity, Symptom

Confidence = Literal["certain", "likely", "possible"]
EventKind = Literal["new", "grown", "again", "over", "known", "cause", "withdrawn", "begin", "end"]


@dataclass(frozen=True)
class Finding:
    """A rule's condition has held at some rows for as long as the rule asks.

    Args:
        rule: the name of the rule.
        rows: the names of modules or parameters, the earliest and worst first; one empty name for the whole run.
        tensor: the tensor of the first row; empty for facts.
        first_step: the step since which the condition holds.
        last_step: the last step at which it was seen.
        severity: of the rule.
        evidence: some of the symptoms, the clearest first.
        message: what follows.
        next_steps: what to try.
        fingerprint: the rule and its rows, the same in every run: `DeadUnits/encoder.*`.
        source: where the thresholds are from.
        cause: the name of the cause that explains the finding; None if it stands alone.
        is_over: the step from which the condition holds no longer; None while it holds.
        number: of the finding in its run; it stays when the finding grows.

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

    def __post_init__(self) -> None:
        if not self.fingerprint:
            object.__setattr__(self, "fingerprint", fingerprint_of(self.rule, self.rows))

    def to_dict(self) -> dict[str, Any]:
        """The finding as plain values."""
        return {
            **asdict(self),
            "severity": str(self.severity),
            "rows": list(self.rows),
            "next_steps": list(self.next_steps),
            "evidence": [symptom_to_dict(symptom) for symptom in self.evidence],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Finding:
        """The finding of `to_dict`.

        Raises:
            RuleError: a field is missing or damaged; the message names the field.
        """
        read = _Fields("finding", values)
        symptoms = read.of("evidence", list)
        return cls(
            read.of("rule", str),
            rows=read.texts("rows"),
            tensor=read.of("tensor", str),
            first_step=read.of("first_step", int),
            last_step=read.of("last_step", int),
            severity=read.severity(),
            evidence=tuple(symptom_from_dict(symptom) for symptom in symptoms),
            message=read.of("message", str),
            next_steps=read.texts("next_steps"),
            fingerprint=read.of("fingerprint", str),
            source=read.of("source", str),
            cause=read.of("cause", str, optional=True),
            is_over=read.of("is_over", int, optional=True),
            number=read.of("number", int),
        )


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

    def to_dict(self) -> dict[str, Any]:
        """The cause as plain values."""
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}
        return plain | {"severity": str(self.severity)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Cause:
        """The cause of `to_dict`.

        Raises:
            RuleError: a field is missing or damaged; the message names the field.
        """
        read = _Fields("cause", values)
        confidence = read.of("confidence", str)
        if confidence not in get_args(Confidence):
            raise read.damaged("confidence", f"one of {', '.join(get_args(Confidence))}")
        numbers = read.of("numbers", list)
        if not all(type(number) is int for number in numbers):
            raise read.damaged("numbers", "a list of integers")
        return cls(
            read.of("name", str),
            read.of("message", str),
            read.texts("findings"),
            read.texts("next_steps"),
            confidence,
            read.texts("alternatives"),
            read.severity(),
            read.of("first_step", int),
            tuple(numbers),
        )


@dataclass(frozen=True)
class Event:
    """Something that a look found, or the begin or end of a fit.

    Args:
        kind: of a finding `new`, `grown` (it has more rows), `over`, `again` (it was over), `known` (a resumed fit has it from
            its checkpoint); of a cause `cause` (it is new, or its findings or confidence changed) or `withdrawn` (later
            findings contradict it); `begin` or `end` of a fit.
        step: the step of the look; of a begin, the first step of the fit.
        finding: the finding; None for other kinds.
        cause: the cause; None for other kinds.
        time: of a begin, in seconds since 1970; None for other kinds, and if it is not known.
    """

    kind: EventKind
    step: int
    finding: Finding | None = None
    cause: Cause | None = None
    time: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """The event as plain values."""
        about = {"finding": self.finding, "cause": self.cause}
        time = {} if self.time is None else {"time": self.time}
        return {"event": self.kind, "step": self.step, **time, **{name: each.to_dict() for name, each in about.items() if each}}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Event:
        """The event of `to_dict`.

        Raises:
            RuleError: a field is missing or damaged; the message names the field.
        """
        read = _Fields("event", values)
        kind = read.of("event", str)
        if kind not in get_args(EventKind):
            raise read.damaged("event", f"one of {', '.join(get_args(EventKind))}")
        if kind in ("begin", "end"):
            return cls(kind, read.of("step", int), time=read.number("time") if "time" in values else None)
        if kind in ("cause", "withdrawn"):
            return cls(kind, read.of("step", int), None, Cause.from_dict(read.of("cause", dict)))
        return cls(kind, read.of("step", int), Finding.from_dict(read.of("finding", dict)))


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


_NUMBER_WORDS: Final = ("nan", "inf", "-inf")


def symptom_to_dict(symptom: Symptom) -> dict[str, Any]:
    """A symptom as plain values. JSON has no numbers that are not finite, so they are words."""
    words = {name: _as_plain(getattr(symptom, name)) for name in ("measured", "threshold")}
    return {
        "row": symptom.row,
        "tensor": symptom.tensor,
        "step": symptom.step,
        **words,
        "text": symptom.text,
        "since": symptom.since,
    }


def symptom_from_dict(values: Any) -> Symptom:
    """The symptom of `symptom_to_dict`; raises RuleError if a field is damaged."""
    read = _Fields("symptom", values)
    measured, threshold = read.number("measured"), read.number("threshold")
    return Symptom(
        read.of("row", str),
        tensor=read.of("tensor", str),
        step=read.of("step", int),
        measured=measured,
        threshold=threshold,
        text=read.of("text", str),
        since=read.of("since", int, optional=True),
    )


def _as_plain(number: float) -> float | str:
    return float(number) if math.isfinite(number) else str(float(number))


class _Fields:
    """Reads the fields of a mapping; a damaged one is an error that names the field."""

    def __init__(self, what: str, values: Any) -> None:
        if not isinstance(values, Mapping):
            raise RuleError(f"{what} must be a mapping, got {shown(values)}")
        self._what, self._values = what, values

    def damaged(self, name: str, expected: str) -> RuleError:
        return RuleError(f"{self._what}.{name} must be {expected}, got {shown(self._values.get(name))}")

    def of(self, name: str, kind: type, *, optional: bool = False) -> Any:
        if name not in self._values:
            raise RuleError(f"{self._what} has no {name!r}")
        value = self._values[name]
        if value is None and optional:
            return None
        if not isinstance(value, kind) or isinstance(value, bool):
            raise self.damaged(name, f"of type {kind.__name__}")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        values = self.of(name, list)
        if not all(isinstance(each, str) for each in values):
            raise self.damaged(name, "a list of strings")
        return tuple(values)

    def number(self, name: str) -> float:
        value = self._values.get(name)
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number and value not in _NUMBER_WORDS:
            raise self.damaged(name, f"a number, or one of {', '.join(_NUMBER_WORDS)}")
        return float(value)  # type: ignore[arg-type]

    def severity(self) -> Severity:
        try:
            return Severity(self.of("severity", str))
        except ValueError:
            raise self.damaged("severity", "info, warning or critical") from None
