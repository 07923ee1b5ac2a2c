"""A known cause among those of the table: which of them keeps its name, and what the message says."""

from __future__ import annotations

from lightning_hooks.health.finding import Cause, Finding
from lightning_hooks.health.known_cause import KnownCause
from lightning_hooks.health.rule import Severity


def finding(rule: str, step: int, number: int) -> Finding:
    return Finding(
        rule,
        rows=("",),
        tensor="loss",
        first_step=step,
        last_step=step,
        severity=Severity.WARNING,
        evidence=(),
        message=rule,
        number=number,
    )


NAN, SPIKE = finding("NonFinite", 7, 1), finding("LossSpike", 3, 2)
RECORD = Cause("FirstBadNumberForward", "head gave NaN.", (), ("Bound it.",), "likely", first_step=7)
CAUGHT = Cause("NumericalRange", "A number is not finite.", ("NonFinite",), ("Search.",), first_step=7, numbers=(1,))
RATE = Cause(
    "LearningRateTooHigh", "Steps are too large.", ("LossSpike",), ("Lower it.",), "likely", first_step=3, numbers=(2, 1)
)


def told(known: KnownCause, *found: Cause) -> list[tuple[str, str, tuple[str, ...], tuple[int, ...]]]:
    causes = known.among(found, [NAN, SPIKE])
    return [(each.name, each.message, each.next_steps, each.numbers) for each in causes]


def test_it_takes_the_place_of_a_cause_that_begins_with_it() -> None:
    assert told(KnownCause("NonFinite", RECORD), CAUGHT) == [("FirstBadNumberForward", "head gave NaN.", ("Bound it.",), (1,))]


def test_a_cause_may_keep_its_name_and_gets_the_words() -> None:
    known = KnownCause("NonFinite", RECORD, keeps_names=True)
    assert told(known, CAUGHT) == [("NumericalRange", "head gave NaN.", ("Bound it.",), (1,))]
    assert told(known) == [("FirstBadNumberForward", "head gave NaN.", ("Bound it.",), (1,))]


def test_a_cause_that_began_before_explains_it() -> None:
    expected = [("LearningRateTooHigh", "Steps are too large. head gave NaN.", ("Lower it.",), (2, 1))]
    assert told(KnownCause("NonFinite", RECORD), RATE) == expected
    assert told(KnownCause("NonFinite", RECORD, keeps_names=True), RATE) == expected


def test_a_cause_that_says_more_ends_with_the_words() -> None:
    diverged = Cause("LearningRateTooHigh", "The loss diverged.", ("NonFinite",), ("Lower it.",), first_step=7, numbers=(1,))
    known = KnownCause("NonFinite", RECORD, keeps_names=True)
    assert told(known, diverged) == [("LearningRateTooHigh", "The loss diverged. head gave NaN.", ("Lower it.",), (1,))]


def test_a_certain_cause_takes_the_place_of_a_possible_one_that_began_before() -> None:
    certain = Cause("FirstBadNumberForward", "aten.log gave NaN.", (), confidence="certain", first_step=7)
    possible = Cause("BadBatch", "A batch differs.", ("LossSpike",), first_step=3, numbers=(2, 1))
    assert told(KnownCause("NonFinite", certain), possible) == [("FirstBadNumberForward", "aten.log gave NaN.", (), (1,))]


def test_causes_of_other_findings_stay_and_nothing_is_added_without_a_finding() -> None:
    other = Cause("BadBatch", "A batch differs.", ("LossSpike",), first_step=3, numbers=(2,))
    assert [name for name, *_ in told(KnownCause("NonFinite", RECORD), other)] == ["FirstBadNumberForward", "BadBatch"]
    late = Cause("FirstBadNumberForward", "head gave NaN.", (), first_step=8)
    assert told(KnownCause("NonFinite", late), CAUGHT) == [("NumericalRange", "A number is not finite.", ("Search.",), (1,))]
