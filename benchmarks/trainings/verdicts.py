"""What a judgement says of a healthy training and of a fault: alarms, names, causes, layers, lead time, harm."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from benchmarks.trainings.fitting import REPEATS, Job
from benchmarks.trainings.mutators import MUTATORS
from lightning_hooks.health.rules import DEFAULT_RULES

FACTS: Final = frozenset(rule.name for rule in DEFAULT_RULES if rule.family == "facts")
"""The rules that state a fact. Their alarms on healthy trainings count, and are listed apart."""
LEAST_HARM: Final = 0.02
"""The least distance from the spread of the repetitions at which a measure is harmed."""


class Told(NamedTuple):
    """A finding as a line of a judgement has it."""

    rule: str
    rows: list[str]
    severity: str
    first_step: int
    step: int
    text: str


def alarms(judgement: Mapping[str, Any]) -> list[Told]:
    """The findings above information."""
    return [each for each in findings(judgement) if each.severity != "info"]


def findings(judgement: Mapping[str, Any]) -> list[Told]:
    """All findings of a judgement, notes among them."""
    return [Told(*each) for each in judgement.get("findings", ())]


def calls_healthy(judgement: Mapping[str, Any]) -> bool:
    """Whether the last line of a run begins with "Healthy"."""
    return str(judgement.get("line", "")).startswith("Healthy")


@dataclass(frozen=True)
class Rung:
    """A fault of one severity in one training.

    Args:
        fault: the name of the mutator.
        rung: of its ladder, from 0.
        is_harmful: whether its measure leaves the spread of the repetitions; None if these are not there.
        is_told: whether anything above information was said at or after the onset.
        is_named: whether a rule that names the fault was.
        is_noted: whether a rule that names the fault has a finding at or after the onset, a note or more.
        is_healthy: whether the last line of the run begins with "Healthy".
        in_place: whether it named a row of the fault; None if the fault has no place.
        has_cause: whether a right cause was told; None if no cause of today is right.
        delay: the steps from the onset until a rule named the fault.
        lead: the steps from then until the loss diverged; None if either did not happen.
        has_changed: whether the row or fact that makes the fault visible has changed; None if nobody has compared it.
        said: the rules that were told.
    """

    fault: str
    rung: int
    is_harmful: bool | None
    is_told: bool
    is_named: bool
    is_noted: bool
    is_healthy: bool
    in_place: bool | None
    has_cause: bool | None
    delay: int | None
    lead: int | None
    has_changed: bool | None
    said: tuple[str, ...]


def rung_of(line: Mapping[str, Any], judgement: Mapping[str, Any], lines: Mapping[str, Mapping[str, Any]]) -> Rung:
    """The verdict on a recorded fault.

    Args:
        line: of the recorded job.
        judgement: of it.
        lines: of all recorded jobs, among which are the repetitions of the training without the fault.
    """
    answer = MUTATORS[line["fault"]].answer
    told = [each for each in alarms(judgement) if each.step >= line["onset"]]
    naming = [each for each in told if each.rule in answer.rules]
    named_at = min((each.step for each in naming), default=None)
    diverged = judgement.get("diverged")
    return Rung(
        line["fault"],
        line["rung"],
        harm_of(line, lines),
        bool(told),
        bool(naming),
        any(each.rule in answer.rules and each.step >= line["onset"] for each in findings(judgement)),
        calls_healthy(judgement),
        any(map(matches(line["rows"]), (row for each in naming for row in each.rows))) if line["rows"] else None,
        bool({cause for cause, _ in judgement["causes"]} & {*answer.causes}) if answer.causes else None,
        None if named_at is None else named_at - line["onset"],
        None if named_at is None or diverged is None else diverged - named_at,
        None if "shown" not in judgement else judgement["shown"] is not None,
        tuple(dict.fromkeys(each.rule for each in told)),
    )


def matches(globs: Iterable[str]) -> Any:
    """A function that says whether a name of a row fits one of the globs."""
    return lambda row: any(fnmatch.fnmatchcase(row, each) for each in globs)


def is_too_long(line: Mapping[str, Any]) -> bool:
    """Whether a fit took longer than a job may, which is an error of the generator."""
    return str(line.get("error", "")).startswith(TimeoutError.__name__)


def harm_of(line: Mapping[str, Any], lines: Mapping[str, Mapping[str, Any]]) -> bool | None:
    """Whether a measure lies below that of all repetitions by more than their spread, and by `LEAST_HARM` at least.

    None if a repetition is missing, or if the line has no measure because its fault could not be put into the training, or
    because the fit took too long.
    """
    keys = [Job(line["seed"], repeat=repeat).key for repeat in range(1, REPEATS + 1)]
    values = [float(lines[key]["value"]) for key in keys if key in lines and not lines[key].get("error")]
    if len(values) < REPEATS or "value" not in line or is_too_long(line):
        return None
    spread = max(values) - min(values)
    return not float(line["value"]) >= min(values) - max(spread, LEAST_HARM)
