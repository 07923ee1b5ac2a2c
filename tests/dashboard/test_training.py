"""What the page takes from the facts and the row indices in an event file."""

import json

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import nn

from lightning_hooks import Watch
from lightning_hooks.dashboard.local_run import LocalRun
from lightning_hooks.dashboard.training import Schedule, TrainingFacts, parameters_of, row_schedules, training_facts
from lightning_hooks.records.facts import GroupFacts, OptimizerFacts, StepFacts
from lightning_hooks.records.saved_facts import changes
from lightning_hooks.rules.schedule import EveryN

from .runs import fit


def facts(frozen=(), held=("a",), lr=0.1):
    return StepFacts((OptimizerFacts("SGD", (GroupFacts(lr, 0.0, tuple(held)),)),), frozen=tuple(frozen))


def test_facts_are_those_that_the_package_writes_and_change_only_with_the_parameters():
    steps = [facts(["b"]), facts(["b"], lr=0.2), facts([], held=["a", "b"], lr=0.2), StepFacts()]
    texts = [(3 * i, changes(steps[i - 1] if i else None, each)) for i, each in enumerate(steps)]
    assert training_facts(texts) == [
        TrainingFacts(0, frozenset({"b"}), frozenset({"a"})),
        TrainingFacts(6, frozenset(), frozenset({"a", "b"})),
        TrainingFacts(9, frozenset(), None),  # no optimizer
    ]


@pytest.mark.parametrize(
    "text",
    [
        '{"frozen"',
        '{"frozen": 3, "members": 7}',
        '{"members": [3, [1, 2], ["SGD", [4, [[5], 0]]]]}',
        '"frozen"',
        "[" * 99_999 + '"frozen"',
    ],
    ids=["half", "numbers", "shapes", "text", "deep"],
)
def test_damaged_facts_state_nothing(text):
    assert all(not each.frozen and not each.held for each in training_facts([(0, text)]))


class Two(LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))

    def training_step(self, batch, batch_idx):
        return self.layers(batch).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


def test_schedules_and_parameters_of_a_run(tmp_path):
    watch = [
        Watch(params="*.0.*", tensors="grad", stats="norm", every_n_steps=5),
        Watch(params="*.1.*", tensors="grad", stats="norm"),
    ]
    fit(Two(), tmp_path, watch, 10)
    indices = LocalRun(tmp_path).row_indices()
    assert row_schedules(indices, "grad") == {
        "layers.0.weight": [Schedule(5)],
        "layers.0.bias": [Schedule(5)],
        "layers.1.weight": [Schedule()],
        "layers.1.bias": [Schedule()],
    }
    assert row_schedules(indices, "output") == {}
    assert parameters_of(indices) == {
        "layers.0.weight": "layers.0",
        "layers.0.bias": "layers.0",
        "layers.1.weight": "layers.1",
        "layers.1.bias": "layers.1",
    }


def test_damaged_indices_state_nothing():
    index = {
        "stage": "train",
        "prefix": "",
        "names": ["a", 3],
        "requests": [[[{"every": 0}, ["norm"]], 5]],
        "alike": [["grad", 0, [0, 7]], 3],
    }
    assert row_schedules([index, {"stage": "train"}, {}], "grad") == {"a": []}
    assert parameters_of([{"structure": {"parameters": [["a"], 3, ["a", "m", [1]]]}}, {"structure": 4}, {}]) == {"a": "m"}


@pytest.mark.parametrize(
    "schedule", [Schedule(), Schedule(7), Schedule(4, 9, 30), Schedule(steps=(3, 8))], ids=["all", "every", "window", "list"]
)
def test_a_schedule_is_that_of_the_rules(schedule):
    assert json.loads(json.dumps(schedule._asdict())) == json.loads(json.dumps(vars_of(EveryN(*schedule))))


def vars_of(schedule):
    return {name: getattr(schedule, name) for name in ("every", "first", "last", "steps")}
