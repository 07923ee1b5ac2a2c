"""The numbers and the rows that the overview shows of a healthy run, and the head of a run."""

import json

import numpy as np
import pytest

from lightning_hooks.dashboard.local_run import LocalRun
from lightning_hooks.dashboard.run_head import run_head
from lightning_hooks.dashboard.vitals import SPIKE, vitals
from lightning_hooks.health.rules.gradients import GradientSpike

from .runs import write_run, write_scalars


class Known(LocalRun):
    """A run with facts that the tests give."""

    facts: tuple = ()
    indices: tuple = ()
    rows_about: dict = {}
    known_times = None
    looked = None

    def saved_facts(self, prefix):
        return [*self.facts] if prefix == "" else []

    def row_indices(self):
        return self.indices

    def about(self):
        return self.rows_about

    def times(self):
        return self.known_times

    def checks(self):
        return self.looked


def numbers(run):
    return {each["name"]: (each["state"], each["text"]) for each in vitals(run)["numbers"]}


def test_a_number_that_nobody_measured_is_not_called_usual(tmp_path):
    write_scalars(tmp_path, range(3), accuracy=0.5)
    found = vitals(LocalRun(tmp_path))
    assert [each["state"] for each in found["numbers"]] == ["unknown"] * 4 and found["rows"] == []
    assert {each["text"] for each in found["numbers"]} == {"not measured"}


def test_a_loss_is_judged_by_the_rules_alone(tmp_path):
    write_run(tmp_path, range(10), scalars={"run/loss": 0.5})
    run = Known(tmp_path)
    assert numbers(run)["Loss"] == ("unknown", "the loss went from 0.5 to 0.5")
    run.looked = {"has_learned": False, "course": "the loss went from 2.3 to 2.2"}
    assert numbers(run)["Loss"] == ("info", "the loss went from 2.3 to 2.2")
    run.looked = {"has_learned": True, "course": "the loss went from 2.3 to 0.2"}
    assert numbers(run)["The loss fell"] == ("fine", "from 2.3 to 0.2")


@pytest.mark.parametrize(("jump", "state"), [(4.0, "fine"), (6.0, "info")])
def test_the_gradient_is_steady_up_to_the_multiple_of_the_rule(tmp_path, jump, state):
    assert SPIKE == GradientSpike.times
    for steps, value in ((range(19), 2.0), ([19], 2.0 * jump)):
        write_scalars(tmp_path, steps, run__grad_norm=value, run__nonfinite=0.0)
    found = vitals(LocalRun(tmp_path))["numbers"][3]
    assert found["state"] == state
    assert found["text"] == f"the largest norm in the second half is {jump:g} times the median, 2"


def test_the_rows_farthest_from_the_median_row_come_first_and_each_once(tmp_path):
    names = [f"layer.{i}" for i in range(7)]

    def spread(values, std):
        values["mean"][:], values["std"][:] = 0.0, std
        values["norm"][:] = values["std"] * np.sqrt(values["count"])

    def change(step, values):
        spread(values, [1.0, 1.0, 1.0, 1.0, 8.0, 0.01, 1.0])

    write_run(tmp_path, range(10), names=names, change=change, tensor="grad")
    write_run(tmp_path, range(10), names=names, tensor="param", change=lambda step, values: spread(values, 2.0))
    first, second, *_ = rows = vitals(LocalRun(tmp_path))["rows"]
    assert (first["name"], second["name"], len(rows)) == ("layer.5", "layer.4", 5)
    assert len({each["name"] for each in rows}) == 5
    assert (first["tensor"], first["stat"], first["step"], first["rows"]) == ("grad", "std", 9, 7)
    assert first["factor"] == pytest.approx(0.01, rel=1e-3) and second["factor"] == pytest.approx(8.0, rel=1e-3)


def test_the_head_states_what_the_files_say_and_where_it_is_from(tmp_path):
    run = Known(tmp_path)
    assert run_head(run) == []
    members = [["AdamW", [[["a"], 0], [["b"], 0]]]]
    first = {"members": members, "rates": [[[0.1, 0.0], [0.2, 0.0]]], "precision": None, "accumulate": 4, "frozen": ["b"]}
    run.facts = ((0, json.dumps(first)), (5, '{"rates": [[[0.05, 0.0], [0.2, 0.0]]]}'), (6, '{"loss_scale": 2.0}'))
    parameters = [["a", "", [3, 4], "float32"], ["b", "", [8], "float16"], ["damaged"]]
    run.indices = ({"prefix": "", "structure": {"parameters": parameters}},)
    run.rows_about = {"a": {"shape": [3, 4]}, "late": {"shape": [9, 2], "order": 7}, "first": {"shape": [32, 2], "order": 1}}
    run.known_times = (100.0, 100.0 + 3 * 86_400 + 3600)
    assert {each["term"]: (each["text"], each["note"]) for each in run_head(run)} == {
        "Optimizer": ("AdamW, 2 groups", ""),
        "Rate": ("0.1 to 0.05", "of the first group; 1 other rate at the first step"),
        "Batch": ("32 × 4 batches", "the first dimension of the output of first"),
        "Precision": ("float32, float16", "of the parameters"),
        "Parameters": ("20, 8 of them frozen", "in 2 tensors"),
        "Duration": ("3 d 1 h", "from the first event to the last one"),
    }


@pytest.mark.parametrize(
    "text", ["[1]", '{"members": 3, "rates": [[["x"], 4]], "frozen": 1}', '{"rates": [[[Infinity, 0]]]}', "{"]
)
def test_a_head_from_a_stranger_states_nothing_wrong(tmp_path, text):
    run = Known(tmp_path)
    run.facts = ((0, text),)
    run.indices = ({"prefix": [], "structure": {"parameters": [["a", "", "wide", 1]]}},)
    assert run_head(run) == []
