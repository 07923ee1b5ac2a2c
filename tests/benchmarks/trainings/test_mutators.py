"""Each fault changes what its answer says, beside the same training without it, and ends with no error."""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from benchmarks.trainings.draw import drawn
from benchmarks.trainings.families.family import ANY
from benchmarks.trainings.fitting import Fitted, Job, fitted, spec_of
from benchmarks.trainings.mutators import MUTATORS
from benchmarks.trainings.mutators.answers import ANSWERS
from benchmarks.trainings.recording import Kept, monitors
from benchmarks.trainings.shown import changed_at
from lightning_hooks.health.cause_table import CAUSES
from lightning_hooks.health.rules import DEFAULT_RULES
from lightning_hooks.records.facts import StepFacts
from lightning_hooks.records.step_view import StepView
from lightning_hooks.rules import MODULE_TENSORS, PARAM_TENSORS
from lightning_hooks.rules.statistics import NAMES
from tests.health.views import views_of

STEPS = 30


def test_there_are_at_least_forty_with_five_rungs_and_an_answer() -> None:
    assert len(MUTATORS) >= 40 and set(ANSWERS) == set(MUTATORS)
    assert all(len({*mutator.rungs}) == 5 for mutator in MUTATORS.values())


def test_answers_name_rules_causes_and_rows_that_there_are() -> None:
    rules, causes = {rule.name for rule in DEFAULT_RULES}, {cause.name for cause in CAUSES}
    for name, (shows, named_by, caused_by) in ANSWERS.items():
        assert {*named_by} <= rules and bool(named_by) >= bool(shows), name
        assert {*caused_by} <= causes, name
        if shows:
            tensor, stat = shows
            known = {*StepFacts.__dataclass_fields__} if tensor == "fact" else {*NAMES, "count"}
            assert tensor in ("fact", "loss", *MODULE_TENSORS, *PARAM_TENSORS) and stat in known, name


def test_each_fault_has_trainings_and_changes_the_spec_or_the_case() -> None:
    for name, mutator in MUTATORS.items():
        seed = next(seed for seed in range(300) if mutator.fits(drawn(seed)))
        changes_spec = spec_of(Job(seed, name, 4)) != drawn(seed)
        assert changes_spec or mutator.plant is not type(mutator).plant, name


@cache
def _without(seed: int, folder: Path) -> list[StepView]:
    return _fitted(Job(seed), folder)[1]


def _fitted(job: Job, folder: Path) -> tuple[Fitted, list[StepView]]:
    kept = Kept()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = fitted(spec_of(job).shortened(STEPS), folder, monitors(kept), job)
    return result, kept.views


@pytest.mark.slow
@pytest.mark.parametrize("name", ["float16-without-scaler", "weights-in-bfloat16"])
def test_every_optimizer_of_small_batches_steps_in_sixteen_bits(name: str, tmp_path: Path) -> None:
    mutator = MUTATORS[name]
    seed = next(seed for seed in range(300) if mutator.fits(drawn(seed)))
    for optimizer in ANY:
        spec = replace(drawn(seed), optimizer=optimizer)
        assert mutator.fits(spec)
        result = fitted(mutator.change(spec, mutator.rungs[0]).shortened(3), tmp_path, job=Job(seed, name))
        assert result.error == "", optimizer


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTATORS)
def test_what_must_change_does(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    mutator, folder = MUTATORS[name], tmp_path_factory.getbasetemp()
    seed = next(seed for seed in range(300) if mutator.fits(drawn(seed)))
    result, views = _fitted(Job(seed, name, 4), folder)
    assert result.error == "" and len(views) == STEPS
    if mutator.answer.shows:
        onset = mutator.onset_step(result.spec)
        assert changed_at(views, _without(seed, folder), mutator.answer.shows, result.rows, onset) is not None


def test_a_row_has_changed_if_it_differs_by_a_tenth_at_or_after_the_onset() -> None:
    def views(*losses: float) -> list[StepView]:
        return views_of([("loss", "loss")], [[each] for each in losses])

    healthy = views(1.0, 1.0, 1.0, 1.0)
    assert changed_at(views(1.0, 1.05, 0.95, 1.0), healthy, ("loss", "mean")) is None
    assert changed_at(views(1.0, 1.2, 1.0, 0.8), healthy, ("loss", "mean")) == 1
    assert changed_at(views(1.0, 1.2, 1.0, 0.8), healthy, ("loss", "mean"), onset=2) == 3
    assert changed_at(views(1.0, 1.0, float("nan")), healthy, ("loss", "mean")) == 2
    assert changed_at(views(1.0, 1.2), healthy, ("loss", "mean"), rows=("model*",)) is None
