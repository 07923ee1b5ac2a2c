"""Evidence gives rules the recent views as arrays, whenever and however often they ask."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_hooks.errors import RuleError
from lightning_hooks.health.evidence import Evidence
from lightning_hooks.plan.row_index import RequestedRows, RowIndex
from lightning_hooks.records.facts import GroupFacts, OptimizerFacts, StepFacts
from lightning_hooks.records.step_view import StepView
from lightning_hooks.rules.schedule import EveryN
from tests.health.views import index_of, view_of, views_of

ROWS = [("grad", "a"), ("grad", "b"), ("loss", "loss")]
NEEDS = [("grad", "mean"), ("grad", "norm")]


def evidence_of(views, needs=NEEDS, **options):
    evidence = Evidence(needs, **options)
    for view in views:
        evidence.add(view)
    return evidence


def test_a_track_holds_the_statistic_of_every_row_at_every_step():
    evidence = evidence_of(views_of(ROWS, [[1, 2, 3], [4, np.nan, 6]]))
    track = evidence.track("grad", "norm")
    assert track.names == ("a", "b") and track.rows.tolist() == [0, 1] and track.steps.tolist() == [0, 1]
    np.testing.assert_array_equal(track.values, [[2, 4], [8, np.nan]])
    assert evidence.loss().values.ravel().tolist() == [3, 6]
    assert evidence.order == ("a", "b", "loss") and evidence.tensors == ("grad", "loss")


def test_a_tensor_without_rows_and_a_statistic_that_is_not_measured_have_no_track():
    evidence = evidence_of(views_of(ROWS, [[1, 2, 3]]), [("output", "mean"), ("grad", "cosine"), ("", "run/grad_norm")])
    assert evidence.track("output", "mean") is None and evidence.early("output", "mean") is None
    assert evidence.track("grad", "cosine") is None and evidence.track("", "run/grad_norm") is None
    with pytest.raises(RuleError, match=r"'std' of 'grad' is not collected; add \('grad', 'std'\) to the rule's needs"):
        evidence.track("grad", "std")


def test_whether_there_is_a_track_is_known_without_reading_it():
    needs = [("grad", "norm"), ("output", "mean"), ("grad", "cosine"), ("", "run/grad_norm"), ("", "run/nonfinite")]
    views = [
        StepView(view.step, rows=view.rows, moments=view.moments, summaries={"run/nonfinite": 0.0})
        for view in views_of(ROWS, np.ones((3, 3)))
    ]
    evidence = evidence_of(views, needs)
    for need in needs:
        assert evidence.has(*need) is (need in [("grad", "norm"), ("", "run/nonfinite")])
        assert evidence.has(*need) is (evidence.track(*need) is not None)
    with pytest.raises(RuleError, match="'std' of 'grad' is not collected"):
        evidence.has("grad", "std")


def test_a_number_of_the_whole_step_is_a_track_by_its_tag():
    views = [StepView(step, summaries={"run/grad_norm": float(step)}) for step in range(3)]
    track = evidence_of(views, [("", "run/grad_norm")]).track("", "run/grad_norm")
    assert track.names == ("",) and track.values.ravel().tolist() == [0, 1, 2]


def test_only_steps_that_were_not_judged_are_new():
    evidence = evidence_of(views_of(ROWS, np.ones((6, 3))))
    assert evidence.track("grad", "mean").new == slice(0, 6)
    evidence.judge_after(3)
    assert evidence.track("grad", "mean").new == slice(4, 6) and evidence.new_steps.tolist() == [4, 5]


def test_the_ratio_of_an_update_is_that_of_its_own_parameter():
    rows = [("param", "b"), ("update", "a"), ("param", "a"), ("update", "b")]
    track = evidence_of(views_of(rows, [[10, 1, 4, 2]]), [("update", "ratio")]).track("update", "ratio")
    assert dict(zip(track.names, track.values[0], strict=True)) == {"a": 0.25, "b": 0.2}


def test_a_group_of_rows_is_not_a_row():
    index = RowIndex(["a", "b", "both"], ["grad"] * 3, members={2: (0, 1)})
    assert evidence_of([view_of(0, index, [1, 2, 3])]).track("grad", "mean").names == ("a", "b")


@settings(deadline=None, derandomize=True)
@given(st.lists(st.integers(1, 70), min_size=1, max_size=9))
def test_the_window_is_the_same_however_often_it_is_read(blocks):
    count = sum(blocks)
    views = views_of(ROWS, np.random.default_rng(0).normal(size=(count, 3)))
    at_once, often = evidence_of(views, size=32), Evidence(NEEDS, size=32)
    for start, length in zip(np.cumsum([0, *blocks]), blocks, strict=False):
        for view in views[start : start + length]:
            often.add(view)
        before = often.track("grad", "mean")
        copy = before.values.copy()
    for evidence in (at_once, often):
        track = evidence.track("grad", "mean")
        assert track.steps.tolist() == list(range(max(0, count - 32), count))
        np.testing.assert_array_equal(track.values, [view.moments[:2, 1] for view in views[-32:]])
    np.testing.assert_array_equal(at_once.early("grad", "norm"), often.early("grad", "norm"))
    np.testing.assert_array_equal(before.values, copy)


@settings(deadline=None, derandomize=True)
@given(st.integers(0, 90), st.integers(0, 90))
def test_a_resume_continues_the_window_as_if_it_had_not_happened(split, seed):
    rng = np.random.default_rng(seed)
    series = np.where(rng.random((90, 3)) < 0.2, np.nan, rng.normal(size=(90, 3)))
    facts = [StepFacts((OptimizerFacts("SGD", (GroupFacts(1 / (i + 1), 0.0, ("a", "b")),)),)) for i in range(5)]
    index = index_of(ROWS)
    views = [view_of(i, index, values, facts=facts[i // 20]) for i, values in enumerate(series)]
    whole, first, second = evidence_of(views, size=64), evidence_of(views[:split], size=64), Evidence(NEEDS, size=64)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    for view in views[split:]:
        second.add(view)
    for key in NEEDS:
        np.testing.assert_array_equal(whole.track(*key).values, second.track(*key).values)
        np.testing.assert_array_equal(whole.early(*key), second.early(*key))
        np.testing.assert_array_equal(whole.start(*key), second.start(*key))
    assert whole.steps.tolist() == second.steps.tolist() and whole.loss_falls(40) is second.loss_falls(40)
    assert [whole.facts_at(step) for step in whole.steps] == [second.facts_at(step) for step in whole.steps]


def test_the_early_level_is_the_median_of_a_rows_own_measurements_5_to_24():
    series = np.ones((60, 3))
    series[:, 0] = np.arange(60)
    series[:, 1] = np.where(np.arange(60) % 2, np.nan, np.arange(60))
    views = views_of(ROWS, series)
    assert np.isnan(evidence_of(views[:24]).early("grad", "mean")).all()
    np.testing.assert_array_equal(evidence_of(views[:25]).early("grad", "mean"), [14.5, np.nan])
    np.testing.assert_array_equal(evidence_of(views).early("grad", "mean"), [14.5, 29])


def test_the_start_is_the_first_measurement_of_a_row():
    series = np.arange(900.0).reshape(300, 3)
    series[:4, 1] = np.nan
    evidence = evidence_of(views_of(ROWS, series))
    np.testing.assert_array_equal(evidence.start("grad", "mean"), [0, 13])
    assert evidence_of(views_of(ROWS, series), [("output", "mean")]).start("output", "mean") is None
    assert np.isnan(evidence_of(views_of(ROWS, series[:2])).start("grad", "mean")[1])


def test_the_first_step_is_that_of_the_first_view_of_the_run():
    views = views_of(ROWS, np.ones((300, 3)))
    evidence = evidence_of(views[7:])
    assert evidence.first_step == 7 and Evidence(NEEDS).first_step == -1
    again = Evidence(NEEDS)
    again.load_state_dict(json.loads(json.dumps(evidence.state_dict())))
    assert again.first_step == 7


def test_rows_keep_their_numbers_by_name_if_the_row_index_changes():
    before = views_of(ROWS, [[1, 2, 3]] * 30)
    index = index_of([("grad", "c"), ("grad", "b"), ("loss", "loss")])
    evidence = evidence_of([*before, view_of(30, index, [7, 8, 9])])
    track = evidence.track("grad", "mean")
    assert track.names == ("c", "b")
    np.testing.assert_array_equal(track.values[-2:], [[np.nan, 2], [7, 8]])
    np.testing.assert_array_equal(evidence.early("grad", "mean"), [np.nan, 2])


def test_training_that_goes_back_forgets_the_later_steps():
    views = views_of(ROWS, [[i, i, i] for i in range(10)])
    evidence = evidence_of(views)
    evidence.judge_after(9)
    evidence.add(views[4])
    assert evidence.steps.tolist() == [0, 1, 2, 3, 4] and evidence.new_steps.tolist() == [4]


def test_facts_of_a_step_are_those_from_which_it_trained():
    low, high = StepFacts(loss_scale=1.0), StepFacts(loss_scale=2.0)
    views = [StepView(step, facts=low if step < 5 else high) for step in range(300)]
    evidence = evidence_of(views)
    assert evidence.facts_at(299) is high and evidence.facts is high
    assert evidence_of(views[:20]).facts_at(4) is low and evidence_of([StepView(0)]).facts_at(0) is None


@pytest.mark.parametrize(
    "loss, says",
    [(np.linspace(3, 2, 60), True), (np.linspace(2, 3, 60), False), (np.ones(60), False), (np.ones(49), None)],
)
def test_the_loss_falls_if_its_median_does(loss, says):
    assert evidence_of(views_of([("loss", "loss")], loss[:, None]), []).loss_falls() is says


def test_noise_is_not_a_falling_loss():
    rng = np.random.default_rng(0)
    said = [evidence_of(views_of([("loss", "loss")], rng.normal(2, 0.3, (50, 1))), []).loss_falls() for _ in range(200)]
    assert sum(said) < 15


@pytest.mark.parametrize("damage", [{}, {"step": "x"}, {"early": 3}, {"names": {"grad": ["a"]}}, {"window": {"steps": [2, 1]}}])
def test_a_damaged_state_is_an_error_and_changes_nothing(damage):
    evidence = evidence_of(views_of(ROWS, np.ones((30, 3))))
    state = evidence.state_dict() | damage if damage else {}
    with pytest.raises(RuleError, match="damaged"):
        evidence.load_state_dict(state)
    assert len(evidence.steps) == 30


def test_a_row_is_due_at_the_steps_of_its_schedules_while_the_run_lasts():
    every, rarely = EveryN(1), EveryN(2)
    requests = [
        RequestedRows("grad", ((every, ("norm",)),), np.array([0])),
        RequestedRows("grad", ((rarely, ("norm",)),), np.array([1])),
    ]
    index = RowIndex(["a", "b"], ["grad", "grad"], requested_rows=requests)
    evidence = Evidence([("grad", "mean")])
    for step, due in enumerate([{every}, {every, rarely}, {every}]):
        evidence.add(view_of(step, index, [1.0, 2.0], due=frozenset(due)))
    assert evidence.track("grad", "mean").names == ("a", "b")
    assert evidence.are_due("grad").tolist() == [[True, False], [True, True], [True, False]]
    assert evidence.are_due("output").shape == (3, 0)
    resumed = Evidence([("grad", "mean")])
    resumed.load_state_dict(evidence.state_dict())
    resumed.add(view_of(3, index, [1.0, 2.0], due=frozenset({every})))
    assert resumed.are_due("grad").tolist() == [[False, False]] * 3 + [[True, False]]


def test_all_rows_of_an_index_without_requests_are_due():
    evidence = Evidence([("grad", "mean")])
    for view in views_of([("grad", "a")], [[1.0], [2.0]]):
        evidence.add(view)
    assert evidence.are_due("grad").tolist() == [[True], [True]]


def test_the_new_values_of_rows_are_those_at_new_steps_without_the_steps_between():
    evidence, index = Evidence([("grad", "mean")]), index_of([("grad", "a")])
    for step in range(9):
        evidence.add(view_of(step, index, [step if step % 3 == 0 else np.nan], is_between=step % 3 != 0))
    evidence.judge_after(2)
    track = evidence.track("grad", "mean")
    assert evidence.new_steps.tolist() == [3, 6] and evidence.new_values(track).tolist() == [[3.0], [6.0]]
    rows = evidence.of_rows(track)
    assert rows.steps.tolist() == [0, 3, 6] and rows.values[rows.new].tolist() == [[3.0], [6.0]]


def test_a_resume_knows_which_steps_of_a_full_window_are_between_those_of_rows():
    index = index_of([("grad", "a")])
    views = [view_of(step, index, [step if step % 3 == 0 else np.nan], is_between=step % 3 != 0) for step in range(20)]
    first, resumed = Evidence([("grad", "mean")], size=6), Evidence([("grad", "mean")], size=6)
    for view in views[:15]:
        first.add(view)
    resumed.load_state_dict(json.loads(json.dumps(first.state_dict())))
    for evidence in (first, resumed):
        for view in views[15:]:
            evidence.add(view)
        evidence.judge_after(-1)
        rows = evidence.of_rows(evidence.track("grad", "mean"))
        assert evidence.new_steps.tolist() == [15, 18]
        assert rows.steps.tolist() == [15, 18] and rows.values.tolist() == [[15.0], [18.0]]
