"""Rules on buffers tell what lookouts have seen of running statistics and of averaged copies."""

import pytest

from lightning_hooks.health.rules.buffers import AveragedIntegers, AverageWithoutStatistics, FrozenNormMoves
from lightning_hooks.records.facts import Sighting, StepFacts
from tests.health.rules.made import diagnosed, run, structure_of

MODEL = structure_of({"body.norm": "BatchNorm1d", "target.norm": "BatchNorm1d", "teacher.norm": "BatchNorm1d"})


def told(rule, *rows, is_fact=True):
    sighting = Sighting(rule.looks_for[0], "something moves", rows, is_fact=is_fact)
    views = run(MODEL, {}, steps=10, facts=StepFacts(looked_for=rule.looks_for, sightings=(sighting,)))
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
