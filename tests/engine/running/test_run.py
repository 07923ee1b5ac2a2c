"""Runs: which runs are live on a model, and when a run begins and ends."""

from __future__ import annotations

import gc
from weakref import ref

import pytest
import torch
from torch import nn

from lightning_hooks import StatsMonitor, Watch, assert_no_hooks, instrument, paused
from lightning_hooks.engine.participants.participant import Participant
from lightning_hooks.engine.running.run import Run, runs_on


class Never(Participant):
    """A participant that never acts."""

    has_left = False

    def step_key(self, step, stage):
        return None

    def left(self):
        self.has_left = True


def test_a_run_is_live_from_its_first_participant_to_its_last():
    run, first, second = Run(nn.Linear(1, 1)), Never(), Never()
    assert not run.is_live and runs_on(run.model) == []
    run.join(first)
    run.join(second)
    assert run.is_live and runs_on(run.model) == [run] and run.participants == [first, second]
    run.leave([first])
    assert run.is_live and run.participants == [second]
    run.leave([second])
    assert not run.is_live and runs_on(run.model) == []


def test_closing_a_run_lets_every_participant_leave():
    run, participant = Run(nn.Linear(1, 1)), Never()
    run.join(participant)
    run.close()
    run.close()
    assert participant.has_left and not run.is_live and runs_on(run.model) == []


def test_a_run_is_found_by_its_model_by_a_part_of_it_and_by_what_contains_it():
    model = nn.Sequential(nn.Linear(1, 1), nn.ReLU())
    run = Run(model)
    run.join(Never())
    for module in (model, model[0], nn.ModuleList([model])):
        assert runs_on(module) == [run]
    assert runs_on(nn.Linear(1, 1)) == []


def test_several_runs_on_one_model_are_found():
    model = nn.Linear(1, 1)
    runs = [Run(model), Run(model)]
    for run in runs:
        run.join(Never())
    assert set(runs_on(model)) == set(runs)


def test_a_run_that_is_lost_is_not_kept_alive():
    model = nn.Linear(1, 1)
    run = Run(model)
    run.join(Never())
    known = ref(run)
    del run
    gc.collect()
    assert known() is None and runs_on(model) == []


@pytest.mark.parametrize("inside", [False, True], ids=["the model", "a part of it"])
def test_the_run_of_a_block_is_that_which_is_paused(inside):
    model = nn.Sequential(nn.Linear(1, 1))
    with instrument(model, [StatsMonitor([Watch(modules="*", tensors="output", stats="mean")])]) as watched:
        (run,) = runs_on(model)
        assert run.model is model
        with paused(model[0] if inside else model):
            assert_no_hooks(model)
        model(torch.ones(1, 1))
        watched.step()
    assert watched.latest and runs_on(model) == [] and not run.is_live
