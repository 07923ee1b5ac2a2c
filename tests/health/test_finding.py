"""Findings, causes and events survive JSON; damaged ones are errors that name the field."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_hooks.errors import RuleError
from lightning_hooks.health.accepting import is_accepted
from lightning_hooks.health.finding import Cause, Event, Finding, fingerprint_of
from lightning_hooks.health.rule import Severity, Symptom

steps, texts, numbers = st.integers(0, 10**9), st.text(max_size=9), st.floats()
symptoms = st.builds(
    Symptom, texts, tensor=texts, step=steps, measured=numbers, threshold=numbers, text=texts, since=st.none() | steps
)
severities = st.sampled_from(Severity)
findings = st.builds(
    Finding,
    st.sampled_from(["DeadUnits", "LossSpike"]),
    rows=st.lists(texts, min_size=1, max_size=3).map(tuple),
    tensor=texts,
    first_step=steps,
    last_step=steps,
    severity=severities,
    evidence=st.lists(symptoms, max_size=2).map(tuple),
    message=texts,
    cause=st.none() | texts,
    is_over=st.none() | steps,
)
causes = st.builds(
    Cause,
    texts,
    texts,
    st.lists(texts, max_size=3).map(tuple),
    confidence=st.sampled_from(["certain", "likely", "possible"]),
    severity=severities,
    numbers=st.lists(steps, max_size=3).map(tuple),
)
events = st.builds(Event, st.sampled_from(["new", "grown", "again", "over"]), steps, findings) | st.builds(
    Event, st.sampled_from(["cause", "withdrawn"]), steps, st.none(), causes
)


@settings(deadline=None, derandomize=True)
@given(events)
def test_an_event_survives_strict_json(event):
    text = json.dumps(event.to_dict(), allow_nan=False)
    # NaN is not equal to itself; its repr is.
    assert repr(Event.from_dict(json.loads(text))) == repr(event)


FINDING = Finding(
    "R",
    rows=("a",),
    tensor="grad",
    first_step=1,
    last_step=2,
    severity=Severity.INFO,
    evidence=(Symptom("a", tensor="grad", step=1, measured=math.inf, threshold=1.0, text="t"),),
    message="m",
).to_dict()


@pytest.mark.parametrize(
    "values, says",
    [
        ([], "finding must be a mapping, got "),
        ({name: value for name, value in FINDING.items() if name != "rows"}, "finding has no 'rows'"),
        (FINDING | {"rows": [1]}, r"finding.rows\[0\] must be a string, got 1"),
        (FINDING | {"first_step": "x"}, "finding.first_step must be an integer .*got 'x'"),
        (FINDING | {"severity": "bad"}, "finding.severity must be one of info, warning, critical, got 'bad'"),
        (
            FINDING | {"evidence": [FINDING["evidence"][0] | {"measured": "much"}]},
            r"finding.evidence\[0\].measured must be a number, or one of nan, inf, -inf, got 'much'",
        ),
    ],
)
def test_a_damaged_finding_is_an_error_that_names_the_field(values, says):
    with pytest.raises(RuleError, match=says):
        Finding.from_dict(values)


@pytest.mark.parametrize(
    "damage, says",
    [
        ({"confidence": "sure"}, "cause.confidence must be one of certain, likely, possible, got 'sure'"),
        ({"numbers": ["x"]}, r"cause.numbers\[0\] must be an integer"),
    ],
)
def test_a_damaged_cause_is_an_error_that_names_the_field(damage, says):
    with pytest.raises(RuleError, match=says):
        Cause.from_dict(Cause("A", "m", ("R",)).to_dict() | damage)


@pytest.mark.parametrize(
    "event, says",
    [
        ({"event": "old", "step": 1}, "event.event must be one of new, grown"),
        ({"event": "over", "step": 1}, "event has no 'finding'"),
        ({"event": "withdrawn", "step": 1, "finding": FINDING}, "event has no 'cause'"),
        ({"event": "new", "step": 1, "finding": FINDING | {"number": "one"}}, "event.finding.number must be an integer"),
    ],
)
def test_a_damaged_event_is_an_error(event, says):
    with pytest.raises(RuleError, match=says):
        Event.from_dict(event)


@settings(deadline=None, derandomize=True)
@given(
    st.lists(
        st.lists(st.sampled_from(["a", "b", "0"]), min_size=1, max_size=3).map(".".join), min_size=1, max_size=4, unique=True
    )
)
def test_a_fingerprint_accepts_every_row_of_its_finding(rows):
    assert all(is_accepted([fingerprint_of("Rule", rows)], "Rule", row) for row in rows)
    assert fingerprint_of("Rule", rows) == fingerprint_of("Rule", rows[::-1])


def test_patterns_are_not_regular_expressions():
    assert is_accepted(["R/a[0]*"], "R", "a[0].weight") and not is_accepted(["R/a.b"], "R", "axb")
