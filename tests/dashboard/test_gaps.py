"""Why a row was not measured: what the event file states, and no more than that."""

import numpy as np
import pytest

from lightning_hooks.dashboard.api import Api
from lightning_hooks.dashboard.gaps import Known, answer, forgotten, gaps, reasons_of
from lightning_hooks.dashboard.local_run import LocalRun
from lightning_hooks.dashboard.runs import LocalRuns
from lightning_hooks.dashboard.training import Schedule, TrainingFacts

from .runs import NAMES, write_run

PARAMETERS = {"a.weight": "a", "a.bias": "a", "b.weight": "b", "c.weight": "c"}
FACTS = [
    TrainingFacts(0, frozenset({"a.weight", "a.bias"}), frozenset({"c.weight"})),
    TrainingFacts(50, frozenset({"a.bias"}), frozenset({"a.weight", "c.weight"})),
]
KNOWN = Known(FACTS, PARAMETERS, {"a": True, "b": True, "c": False})


def kinds(name, tensor, known=KNOWN):
    return [(each.since, each.kind) for each in reasons_of(name, tensor, known)]


@pytest.mark.parametrize("tensor", ["grad", "final_grad", "update", "state.exp_avg"])
def test_frozen_forgotten_and_uncalled_parameters_have_reasons_of_their_own(tensor):
    assert kinds("a.weight", tensor) == [(0, "frozen"), (50, "gap")]  # unfrozen at step 50
    assert kinds("a.bias", tensor) == [(0, "frozen")]
    assert kinds("b.weight", tensor) == [(0, "forgotten")]
    assert kinds("c.weight", tensor) == [(0, "uncalled")]
    assert forgotten(KNOWN) == ["b.weight"]
    assert [each.text for name in ("a.bias", "b.weight", "c.weight") for each in reasons_of(name, tensor, KNOWN)] == [
        "frozen: requires_grad is off",
        "in no optimizer, so it gets no update",
        "not called",
    ]


def test_the_gradient_of_an_output_is_explained_by_all_parameters_of_its_module():
    assert kinds("a", "output_grad") == [(0, "frozen"), (50, "gap")]
    assert kinds("b", "output_grad") == [] and kinds("c", "input_grad") == [(0, "uncalled")]
    assert kinds("a", "output") == [] and kinds("a.weight", "param") == []


def test_nothing_is_claimed_that_the_file_does_not_state():
    assert kinds("a.weight", "grad", Known()) == [] and forgotten(Known()) == []
    assert kinds("x.weight", "grad") == []  # a parameter that the structure does not have
    without = Known([TrainingFacts(0, frozenset(), None)], PARAMETERS)  # a run without an optimizer
    assert kinds("b.weight", "grad", without) == [] and forgotten(without) == []


def test_the_answer_refers_to_each_reason_once():
    known = Known(FACTS, PARAMETERS, {}, {"c.weight": [Schedule(10)], "b.weight": [Schedule(10), Schedule()]})
    found = answer(["c.weight", "b.weight", "a.bias"], "grad", known, last=80, run_last=120, unit=1)
    reasons = found["reasons"]
    assert reasons[found["otherwise"]] == {"kind": "gap", "text": "no gradient reached it", "schedule": None}
    (planned,) = found["rows"]["0"]["schedules"]
    assert reasons[planned]["text"] == "not due: measured every 10 steps" and reasons[planned]["schedule"]["every"] == 10
    assert found["rows"]["1"]["schedules"] == []  # it is due at every step
    assert [reasons[i]["kind"] for row in ("1", "2") for _, i in found["rows"][row]["reasons"]] == ["forgotten", "frozen"]
    assert found["ended"]["after"] == 80
    assert reasons[found["ended"]["reason"]]["text"] == (
        "nothing was written after step 80, while the run went on: the monitor failed or was stopped"
    )
    assert answer([], "grad", known, last=119, run_last=120, unit=1)["ended"] is None
    assert answer([], "grad", known, last=None, run_last=120, unit=1)["ended"] is None


def test_modules_that_ran_once_were_called(tmp_path):
    def change(step, values):
        for stat in values:
            values[stat][1] = 0 if stat == "count" else np.nan
            if step != 299:
                values[stat][2] = 0 if stat == "count" else np.nan

    write_run(tmp_path, range(300), names=["a", "b", "c"], tensor="output", change=change)
    from lightning_hooks.dashboard.gaps import _called

    assert _called(LocalRun(tmp_path), "", ["a", "b", "c", "d"]) == {"a": True, "b": False, "c": True}


def test_a_run_without_facts_and_a_request_without_a_table(tmp_path):
    write_run(tmp_path, range(5))
    found = gaps(LocalRun(tmp_path), "grad", "norm")
    assert found["rows"] == {} and found["forgotten"] == []
    api = Api(LocalRuns(tmp_path))
    assert api("gaps", {"run": ".", "tensor": "grad", "stat": "norm"}).status == 200
    assert api("gaps", {"run": ".", "tensor": "grad", "stat": "other"}).status == 404
    assert api("gaps", {"run": ".", "tensor": "grad"}).status == 400
    assert LocalRun(tmp_path).rows("grad", "norm") == NAMES
