"""A diagnosis turns symptoms into findings: patience, warm-up, hysteresis, grouping, resume, rules that fail."""

import json
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_hooks.errors import RuleError
from lightning_hooks.health.cause_rule import CauseRule
from lightning_hooks.health.engine import Diagnosis
from lightning_hooks.health.finding import stands
from lightning_hooks.health.rule import HealthRule, symptoms_where
from lightning_hooks.health.steps_before import divergence, has_diverged
from lightning_hooks.health.summary import FURTHER
from lightning_hooks.records.facts import GroupFacts, OptimizerFacts, StepFacts
from lightning_hooks.records.step_view import StepView
from tests.health.rules_for_tests import Huge, LowScale, Raises
from tests.health.views import index_of, view_of, views_of

CAUSES = (CauseRule(name="Hot", message="{where} is hot since {step}.", required=("Huge",), supporting=("LowScale",)),)


class Either(Huge):
    """A gradient or an output reaches a number."""

    patience: int = 2
    needs = (("grad", "abs_max"), ("output", "abs_max"))

    def check(self, evidence):
        for tensor, _ in self.needs:
            track = evidence.track(tensor, "abs_max")
            yield from symptoms_where(track, track.values > self.most, self.most, lambda value: f"it reaches {value:g}")


def run(views, *rules, **options):
    diagnosis = Diagnosis(rules, causes=CAUSES, **options)
    events = [event for view in views for event in diagnosis.add(view)]
    return diagnosis, events + diagnosis.finish()


def one_row(series, **options):
    return views_of([("grad", "a")], np.asarray(series, dtype=float)[:, None], **options)


def spans(series, patience):
    """The law, written plainly: (first, over) of each finding of one row."""
    found, streak, misses, first, gone = [], 0, 0, None, None
    for step, value in enumerate(series):
        if np.isnan(value):
            continue
        if value > 10:
            first = step if streak == 0 and misses == 0 else first
            streak, misses = streak + 1, 0
            if streak == patience:
                found.append([first, None])
        elif streak >= patience:
            gone = step if misses == 0 else gone
            misses += 1
            if misses == patience:
                found[-1][1], streak, misses = gone, 0, 0
        else:
            streak, misses = 0, 0
    return found


values = st.sampled_from([1.0, 20.0, 20.0, float("nan")])


@settings(deadline=None, derandomize=True)
@given(st.lists(values, min_size=1, max_size=60), st.integers(1, 5), st.integers(1, 9))
def test_patience_and_hysteresis_follow_the_law_however_often_a_rule_looks(series, patience, every):
    diagnosis, events = run(one_row(series), Huge(patience=patience, every_n_steps=every))
    expected = spans(series, patience)
    assert len([event for event in events if event.kind in ("new", "again")]) <= len(expected)
    if expected:
        (finding,) = diagnosis.findings
        assert finding.first_step == expected[0][0] and finding.is_over == expected[-1][1]
    else:
        assert not diagnosis.findings and not events


@settings(deadline=None, derandomize=True)
@given(st.lists(st.lists(values, min_size=3, max_size=3), min_size=1, max_size=60), st.permutations(range(3)))
def test_findings_do_not_depend_on_the_order_of_rows(series, order):
    rows = [("grad", name) for name in ("x.a", "x.b", "y")]
    _, events = run(views_of(rows, series), Huge())
    _, mixed = run(views_of([rows[i] for i in order], [[line[i] for i in order] for line in series]), Huge())
    assert events == mixed


@settings(deadline=None, derandomize=True)
@given(st.lists(st.lists(values, min_size=3, max_size=3), min_size=1, max_size=60), st.data())
def test_a_resume_gives_the_findings_of_a_run_without_one(series, data):
    split = data.draw(st.integers(0, len(series)))
    index = index_of([("grad", "x.a"), ("grad", "x.b"), ("grad", "y")])
    views = [view_of(i, index, line, facts=StepFacts(loss_scale=0.5 if line[0] > 10 else 1.0)) for i, line in enumerate(series)]
    rules = Huge(), LowScale()
    whole, events = run(views, *rules)
    first, second = Diagnosis(rules, causes=CAUSES), Diagnosis(rules, causes=CAUSES)
    resumed = [event for view in views[:split] for event in first.add(view)]
    second.load_state_dict(json.loads(json.dumps(first.state_dict(), allow_nan=False)))
    resumed += [event for view in views[split:] for event in second.add(view)] + second.finish()
    assert resumed == events and second.findings == whole.findings and second.summary() == whole.summary()


@settings(deadline=None, derandomize=True)
@given(st.lists(st.lists(values, min_size=6, max_size=6), min_size=1, max_size=60), st.sets(st.integers(0, 59)))
def test_findings_read_between_looks_are_those_that_the_saved_state_gives(series, reads):
    index = index_of([(tensor, row) for tensor in ("grad", "output") for row in ("x.a", "x.b", "y")])
    rules = Either(), LowScale()
    diagnosis = Diagnosis(rules, causes=(*CAUSES, CauseRule(name="Both", message="", any_of=("Either",))))
    for step, line in enumerate(series):
        events = diagnosis.add(view_of(step, index, line, facts=StepFacts(loss_scale=0.5 if line[0] > 10 else 1.0)))
        if step in reads or step == len(series) - 1:
            saved = Diagnosis(rules, causes=CAUSES)
            saved.load_state_dict(diagnosis.state_dict())
            assert diagnosis.findings == saved.findings
        told = [event.finding for event in events if event.finding]
        assert told == [finding for finding in diagnosis.findings if finding in told]


def test_a_finding_that_has_been_read_does_not_change():
    diagnosis = Diagnosis([Huge()])
    for view in one_row([20] * 5):
        diagnosis.add(view)
    (before,) = diagnosis.findings
    for view in one_row([20] * 15)[5:]:
        diagnosis.add(view)
    diagnosis.findings.clear()
    assert (before.last_step, diagnosis.findings[0].last_step, diagnosis.findings[0].number) == (4, 14, 1)


def test_a_finding_says_what_where_and_since_when():
    diagnosis, events = run(one_row([1, 1, 20, 30, 25, 20, 20]), Huge())
    (finding,) = diagnosis.findings
    assert (finding.rule, finding.rows, finding.tensor) == ("Huge", ("a",), "grad")
    assert (finding.first_step, finding.last_step, finding.is_over, finding.cause) == (2, 6, None, "Hot")
    assert finding.message == "a: gradient reaches 30." and finding.next_steps == ("Clip it.",) and finding.source == "a test"
    assert [event.kind for event in events] == ["new", "cause"] and events[0].step == 4
    assert events[1].cause.message == "a is hot since 2."


def test_a_finding_begins_with_the_pattern_if_its_second_witness_comes_later():
    class Witnessed(Huge):
        def check(self, evidence):
            track = evidence.track("grad", "abs_max")
            pattern = track.values > self.most
            witness = (track.steps >= 13)[:, None]
            return symptoms_where(track, pattern & witness, self.most, str, pattern)

    series = [20, 20, 1, np.nan, 20, np.nan, 20] + [20] * 13
    for every in (1, 7, 20):
        assert run(one_row(series), Witnessed(every_n_steps=every))[0].findings[0].first_step == 4
    assert run(one_row([20] * 20), Witnessed())[0].findings[0].first_step == 0
    assert run(one_row([1] * 13 + [20] * 7), Witnessed())[0].findings[0].first_step == 13


def looks_of(rule_class, steps, values=lambda step: 1.0, **options):
    """The steps at which a rule looks in a run whose views are of these steps."""
    looks = []

    class Watched(rule_class):
        def check(self, evidence):
            looks.append(evidence.step)
            return super().check(evidence)

    index = index_of([("grad", "a")])
    diagnosis = Diagnosis([Watched(**options)])
    for step in steps:
        diagnosis.add(view_of(step, index, [values(step)]))
    return looks


def test_a_rule_looks_by_steps_of_the_training_not_of_the_views():
    assert looks_of(Huge, range(0, 60, 5), every_n_steps=20) == [20, 40]
    assert looks_of(Huge, range(0, 60), every_n_steps=20) == [19, 39, 59]
    assert looks_of(Huge, range(100, 120), every_n_steps=5) == [100, 104, 109, 114, 119]


def test_a_rule_with_a_long_interval_looks_half_as_often_later():
    assert looks_of(Huge, range(330), every_n_steps=20) == [*range(19, 220, 20), 239, 279, 319]
    assert looks_of(Huge, range(230), every_n_steps=5)[-4:] == [214, 219, 224, 229]


def test_a_rule_with_a_short_interval_looks_at_each_step_until_it_is_decided():
    huge = range(9, 30)
    assert looks_of(Huge, range(30), lambda step: 20.0 if step in huge else 1.0, every_n_steps=5, patience=3) == [
        4,
        9,
        10,
        11,
        14,
        19,
        24,
        29,
    ]
    assert looks_of(Huge, range(20), lambda step: 20.0 if step == 9 else 1.0, every_n_steps=5, patience=3) == [4, 9, 10, 14, 19]


def test_symptoms_before_the_warm_up_do_not_count():
    assert run(one_row([20] * 9), Huge(warmup=7))[0].findings == []
    assert run(one_row([20] * 10), Huge(warmup=7))[0].findings[0].first_step == 7


def test_rows_that_begin_within_twenty_steps_are_one_finding():
    series = np.ones((80, 4))
    for column, begin in enumerate([10, 20, 30, 60]):
        series[begin:, column] = 20
    rows = [("grad", name) for name in ("e.0", "e.1", "e.2", "head")]
    diagnosis, events = run(views_of(rows, series), Huge())
    assert [finding.rows for finding in diagnosis.findings] == [("e.0", "e.1", "e.2"), ("head",)]
    assert diagnosis.findings[0].fingerprint == "Huge/e.*" and diagnosis.findings[0].message.startswith("e.0, then 2 more: ")
    assert [event.kind for event in events if event.finding] == ["new", "grown", "grown", "new"]


@pytest.mark.parametrize("turn", [list, lambda symptoms: list(symptoms)[::-1]])
def test_rows_found_at_one_look_are_grouped_from_the_earliest_whatever_the_order_of_symptoms(turn):
    class Turned(Huge):
        def check(self, evidence):
            return turn(super().check(evidence))

    series = np.ones((40, 3))
    for column, begin in enumerate([1, 15, 30]):
        series[begin:, column] = 20
    diagnosis, _ = run(views_of([("grad", name) for name in "abc"], series), Turned(every_n_steps=40))
    assert [finding.rows for finding in diagnosis.findings] == [("a", "b"), ("c",)]


def test_of_rows_that_begin_together_the_worst_is_first():
    diagnosis, _ = run(views_of([("grad", "a"), ("grad", "b")], [[20, 30]] * 5), Huge())
    assert diagnosis.findings[0].rows == ("b", "a") and [symptom.row for symptom in diagnosis.findings[0].evidence] == [
        "b",
        "a",
    ]


def test_a_finding_that_returns_is_the_same_one():
    diagnosis, events = run(one_row([20] * 5 + [1] * 5 + [20] * 5), Huge())
    assert [event.kind for event in events if event.finding] == ["new", "over", "again"]
    assert events[2].finding.is_over == 5 and len(diagnosis.findings) == 1 and diagnosis.findings[0].is_over is None


def test_a_fact_is_told_at_once():
    views = [StepView(step, facts=StepFacts(loss_scale=0.5 if step == 7 else 1.0)) for step in range(12)]
    diagnosis, events = run(views, LowScale())
    assert [(event.kind, event.step) for event in events] == [("new", 7), ("over", 8)]
    assert diagnosis.findings[0].message == "The loss scale is low." and diagnosis.findings[0].is_over == 8


def test_accepted_rows_are_no_findings():
    diagnosis, _ = run(views_of([("grad", "e.0"), ("grad", "f")], [[20, 20]] * 5), Huge(), accept=["Huge/e.*"])
    assert [finding.rows for finding in diagnosis.findings] == [("f",)] and diagnosis.summary()["accepted"] == ["Huge/e.0"]
    assert run(one_row([20] * 5), Huge(), accept=["Huge"])[0].findings == []


def test_a_rule_that_raises_is_switched_off_with_one_warning():
    with pytest.warns(UserWarning, match="health rule Raises failed and is switched off: ZeroDivisionError: no luck") as said:
        diagnosis, _ = run(one_row([20] * 9), Raises(), Huge())
    assert len(said) == 1 and len(diagnosis.findings) == 1
    assert diagnosis.summary()["failed"] == {"Raises": "ZeroDivisionError: no luck"}
    assert "(Raises failed)" in diagnosis.summary()["line"]


@pytest.mark.parametrize("result, shown", [(["a"], "'a'"), (3, "3"), (None, "None")])
def test_a_rule_that_gives_no_symptoms_is_switched_off(result, shown):
    class Wrong(HealthRule):
        def check(self, evidence):
            return result

    with pytest.warns(UserWarning, match=f"Wrong.check must give symptoms, got {shown}"):
        run(one_row([20] * 3), Wrong())


def test_words_that_fail_are_replaced_by_the_numbers():
    class Mute(Huge):
        def message(self, rows, symptoms):
            raise KeyError(rows)

    assert run(one_row([20] * 5), Mute())[0].findings[0].message == "a: gradient reaches 20."


def test_a_healthy_run_says_which_rules_looked_and_which_could_not():
    diagnosis, events = run(one_row([1] * 9), Huge(), LowScale())
    assert events == [] and diagnosis.summary()["ran"] == ["Huge"]
    assert diagnosis.summary()["could_not_run"] == {"LowScale": "nobody knows how the steps trained"}
    assert diagnosis.summary()["line"] == f"No problem found in 9 steps; {FURTHER}."
    assert run(one_row([20] * 9), Huge())[0].summary()["line"] == "Not healthy in 9 steps: Hot."


def test_information_does_not_make_a_run_unhealthy():
    diagnosis, _ = run(one_row([20] * 9), Huge(severity="info"))
    assert diagnosis.summary()["line"] == f"No problem found in 9 steps (1 note); {FURTHER}."


@pytest.mark.parametrize(
    ("last", "line"),
    [
        (20.0, "Not healthy in 16 steps: Hot."),
        (1.0, "No problem lasts in 16 steps; over: Hot; `check` looks further."),
    ],
)
def test_a_problem_that_is_over_does_not_make_a_run_unhealthy_and_is_named(last, line):
    diagnosis, _ = run(one_row([20.0] * 8 + [last] * 8), Huge())
    assert diagnosis.summary()["line"] == line
    assert (diagnosis.summary()["verdict"] == "Not healthy") == any(map(stands, diagnosis.findings))


class Scaled(LowScale):
    """A fact that is looked at every five steps."""

    every_n_steps: int = 5


@pytest.mark.parametrize(("is_between", "is_over"), [(True, None), (False, 9)])
def test_a_fact_is_not_over_if_the_run_ends_with_steps_at_which_no_row_was_measured(is_between, is_over):
    views = one_row([1.0] * 10, facts=StepFacts(loss_scale=0.5))
    views[9] = replace(views[9], is_between=is_between, facts=StepFacts(loss_scale=1.0))
    diagnosis, _ = run(views[:5] + views[9:], Scaled())
    assert [finding.is_over for finding in diagnosis.findings] == [is_over]


def test_a_cause_that_is_contradicted_is_withdrawn():
    causes = (CauseRule(name="Hot", message="m", required=("Huge",), excluding=("LowScale",)),)
    views = one_row([20] * 6, facts=StepFacts()) + [
        view_of(step, index_of([("grad", "a")]), [20], facts=StepFacts(loss_scale=0.5)) for step in range(6, 12)
    ]
    diagnosis = Diagnosis([Huge(), LowScale()], causes=causes)
    kinds = [event.kind for view in views for event in diagnosis.add(view)]
    assert kinds == ["new", "cause", "new", "withdrawn"] and diagnosis.causes == []


def test_training_that_goes_back_is_judged_again():
    views = one_row([1] * 5 + [20] * 2)
    diagnosis = Diagnosis([Huge(every_n_steps=1)])
    for view in [*views, *views, *one_row([1] * 5 + [20] * 3)]:
        diagnosis.add(view)
    assert [finding.first_step for finding in diagnosis.findings] == [5]


def test_wrong_rules_are_errors():
    with pytest.raises(RuleError, match="rules must be health rules, got 'Huge'"):
        Diagnosis(["Huge"])
    with pytest.raises(RuleError, match="two rules have the name Huge"):
        Diagnosis([Huge(), Huge(most=3.0)])
    assert Diagnosis([Huge(enabled=False)]).rules == {}


@pytest.mark.parametrize(
    "damage", [{"end": "x"}, {"groups": [{}]}, {"causes": [3]}, {"evidence": {}}, {"streaks": {"Huge": [1]}}]
)
def test_a_damaged_state_is_an_error_and_changes_nothing(damage):
    diagnosis, _ = run(one_row([20] * 9), Huge())
    before = diagnosis.state_dict()
    with pytest.raises(RuleError, match="damaged"):
        diagnosis.load_state_dict(before | damage)
    assert diagnosis.state_dict() == before


@dataclass(frozen=True, kw_only=True)
class Skips(Huge):
    """Notes the steps at which it looked."""

    every_n_steps: int = 1
    patience: int = 2
    looks: ClassVar[list[int]] = []

    def can_skip(self, view):
        return view.summaries.get("quiet") == 1

    def check(self, evidence):
        self.looks.append(evidence.step)
        return super().check(evidence)


def test_a_rule_skips_quiet_steps_but_not_the_first_nor_those_of_an_open_finding():
    series, quiet = np.ones(12), np.ones(12)
    series[3:7] = 20.0
    quiet[3:5] = 0
    index = index_of([("grad", "a")])
    views = [view_of(i, index, [x], summaries={"quiet": q}) for i, (x, q) in enumerate(zip(series, quiet, strict=True))]
    Skips.looks.clear()
    diagnosis, events = run(views, Skips())
    # Step 0 is the first look; 3 and 4 are not quiet; the finding of 3 to 6 is over after two steps; 11 is the end of the run.
    assert Skips.looks == [0, 3, 4, 5, 6, 7, 8, 11]
    assert [(event.kind, event.step) for event in events if event.finding] == [("new", 4), ("over", 8)]
    (finding,) = diagnosis.findings
    assert (finding.first_step, finding.is_over) == (3, 7)


def test_an_error_of_can_skip_switches_the_rule_off_and_nothing_else():
    class Fails(Huge):
        def can_skip(self, view):
            raise ZeroDivisionError("no luck")

    with pytest.warns(UserWarning, match="health rule Fails failed and is switched off: ZeroDivisionError: no luck"):
        diagnosis, _ = run(one_row(np.full(20, 20.0)), Fails(warmup=15), Huge())
    assert [finding.rule for finding in diagnosis.findings] == ["Huge"]


@dataclass(frozen=True, kw_only=True)
class Pattern(Huge):
    """A pattern on a gradient."""

    kind: ClassVar[str] = "pattern"


@dataclass(frozen=True, kw_only=True)
class Lost(HealthRule):
    """The loss is 5 or more."""

    patience: int = 1
    every_n_steps: int = 100
    family: ClassVar[str] = "loss"

    def check(self, evidence):
        loss = evidence.loss()
        return symptoms_where(loss, loss.values >= 5, 5.0, lambda value: f"the loss is {value:g}")


@pytest.mark.parametrize("rules", [(Pattern(), Lost()), (Lost(), Pattern())], ids=["pattern first", "loss first"])
def test_what_the_last_look_says_does_not_depend_on_the_order_of_rules(rules):
    views = views_of([("grad", "a"), ("loss", "loss")], [[20.0, 1.0 if step < 5 else 9.0] for step in range(25)])
    diagnosis, events = run(views, *rules)
    assert {finding.rule: str(finding.severity) for finding in diagnosis.findings} == {"Pattern": "warning", "Lost": "warning"}
    (pattern,) = [finding for finding in diagnosis.findings if finding.rule == "Pattern"]
    assert pattern.harm == "the loss is 9"
    assert [event.kind for event in events if event.finding and event.finding.rule == "Pattern"] == ["new", "raised"]


def growing(steps, rate=0.5):
    """The views of a run whose loss grows tenfold a step from step 3 to step 10, and then stays there, with its rate."""
    group = GroupFacts(params=("fc.weight",), lr=rate, weight_decay=0.0)
    facts, index = StepFacts(optimizers=(OptimizerFacts("SGD", (group,)),)), index_of([("grad", "fc.weight"), ("loss", "loss")])
    losses = [10.0 ** min(max(step - 2, 0), 8) for step in range(steps)]
    return [view_of(step, index, [20.0 if step > 8 else 1.0, loss], facts=facts) for step, loss in enumerate(losses)]


HISTORIES = (
    CauseRule(name="Grew", message="It grew.", required=("Huge",), history=has_diverged, detail=divergence),
    CauseRule(name="Other", message="{where}.", any_of=("Huge", "LowScale")),
)


@pytest.mark.parametrize("is_resumed", [False, True], ids=["in one run", "resumed"])
def test_a_cause_keeps_its_numbers_when_the_steps_that_they_are_from_have_left_the_window(is_resumed):
    diagnosis = Diagnosis([Huge(), LowScale()], causes=HISTORIES)
    views = growing(400)
    for view in views[:380]:
        diagnosis.add(view)
    (told,) = diagnosis.causes
    assert told.name == "Grew"
    assert "The loss grew from 1 at step 0 to 1e+06 at step 8. The learning rate is 0.5." in told.message
    if is_resumed:
        diagnosis, old = Diagnosis([Huge(), LowScale()], causes=HISTORIES), diagnosis
        diagnosis.load_state_dict(json.loads(json.dumps(old.state_dict())))
    # A finding of another rule makes the diagnosis explain all findings again.
    events = [event for view in views[380:] for event in diagnosis.add(replace(view, facts=StepFacts(loss_scale=0.5)))]
    assert [event.finding.rule for event in events if event.kind == "new"] == ["LowScale"]
    assert diagnosis.causes[0] == told and not any(event.kind == "withdrawn" for event in events)


def test_a_training_that_went_back_is_judged_by_its_new_steps():
    diagnosis = Diagnosis([Huge()], causes=HISTORIES)
    views = growing(40)
    for view in views:
        diagnosis.add(view)
    assert [cause.name for cause in diagnosis.causes] == ["Grew"]
    index = index_of([("grad", "fc.weight"), ("loss", "loss")])
    for step in range(40):
        diagnosis.add(view_of(step, index, [20.0 if step > 8 else 1.0, 1.0], facts=views[0].facts))
    assert [cause.name for cause in diagnosis.causes] == ["Other"]
