"""Rules on buffers tell what lookouts have seen of running statistics and of averaged copies."""

import pytest

from lightning_hooks.health.rules.buffers import (
    AveragedIntegers,
    AverageLags,
    AverageWithoutStatistics,
    FrozenNormMoves,
    NormStatisticsOfOneBatch,
    NormStatisticsSlow,
)
from lightning_hooks.records.facts import Sighting, StepFacts
from tests.health.rules.made import diagnosed, run, structure_of

MODEL = structure_of({"body.norm": "BatchNorm1d", "target.norm": "BatchNorm1d", "teacher.norm": "BatchNorm1d"})


def told(rule, *rows, steps=10, last_step=None, **fields):
    sighting = Sighting(rule.looks_for[0], "something moves", rows, **fields)
    views = run(MODEL, {}, steps=steps, facts=StepFacts(looked_for=rule.looks_for, sightings=(sighting,), last_step=last_step))
    return [(each.rows, str(each.severity)) for each in diagnosed(rule, views).findings]


@pytest.mark.parametrize(("is_fact", "severity"), [(True, "warning"), (False, "info")])
def test_a_frozen_norm_that_moves_is_a_note_unless_it_is_a_fact(is_fact, severity):
    assert told(FrozenNormMoves(), "body.norm", is_fact=is_fact) == [(("body.norm",), severity)]


def test_a_frozen_norm_of_a_target_network_is_left_out_and_one_of_a_teacher_is_not():
    assert told(FrozenNormMoves(), "target.norm", "teacher.norm") == [(("teacher.norm",), "warning")]


def test_averaged_integers_are_a_warning():
    assert told(AveragedIntegers(), "body.norm") == [(("body.norm",), "warning")]


@pytest.mark.parametrize(("is_fact", "severity"), [(True, "warning"), (False, "info")])
def test_statistics_that_an_average_may_take_at_its_end_are_a_note(is_fact, severity):
    assert told(AverageWithoutStatistics(), "body.norm", is_fact=is_fact) == [(("body.norm",), severity)]


@pytest.mark.parametrize(
    ("left", "last_step", "is_told"),
    [(1.0, None, True), (0.99, 120, True), (0.98, 120, False), (0.99, 20, False), (0.99, None, False)],
    ids=["never", "until the end", "not until the end", "a short fit", "end not known"],
)
def test_slow_statistics_are_judged_by_what_is_left_of_the_first_ones_at_the_end(left, last_step, is_told):
    said = told(NormStatisticsSlow(), "body.norm", measured=left, last_step=last_step)
    assert said == ([(("body.norm",), "warning")] if is_told else [])


def test_slow_statistics_are_judged_by_what_is_left_now_if_the_end_is_not_known():
    assert told(NormStatisticsSlow(), "body.norm", measured=0.999, steps=510) == [(("body.norm",), "warning")]
    assert told(NormStatisticsSlow(), "body.norm", measured=0.99, steps=510) == []


def test_statistics_of_one_batch_are_a_note():
    assert told(NormStatisticsOfOneBatch(), "body.norm") == [(("body.norm",), "info")]


@pytest.mark.parametrize(
    ("steps", "last_step", "is_told"),
    [(80, 120, True), (50, 120, False), (80, None, False)],
    ids=["in the second half", "in the first half", "end not known"],
)
def test_an_average_that_lags_is_told_in_the_second_half_of_a_fit(steps, last_step, is_told):
    assert bool(told(AverageLags(), steps=steps, last_step=last_step)) == is_told
