"""A glimpse of a run reads a few events of its files, and says what the list of runs shows."""

import json
import math

import pytest
from torch.utils.tensorboard import SummaryWriter

from lightning_hooks.dashboard.glimpse import glimpse
from lightning_hooks.dashboard.run_list import RunList
from lightning_hooks.dashboard.verdicts import health_of
from lightning_hooks.health.learning import LossCourse
from lightning_hooks.health.summary import summary_of
from lightning_hooks.tensorboard import StepEventWriter

from .runs import write_run, write_scalars


def test_the_curve_is_spread_over_the_run_and_ends_with_its_last_step(tmp_path):
    write_run(tmp_path, range(1000), scalars={"run/loss": 0.25})
    tag, steps, values = glimpse(tmp_path).curve()
    assert tag == "run/loss" and 60 <= len(steps) <= 70 and {*values} == {0.25}
    gaps = [b - a for a, b in zip(steps, steps[1:], strict=False)]
    assert steps[0] == 0 and steps[-1] == 999 and max(gaps) <= 17


def test_our_loss_comes_before_one_of_the_module_and_nothing_before_nothing(tmp_path):
    write_scalars(tmp_path / "both", range(5), train_loss=2.0, watch__run__loss=1.0, watch__grad_norm__fc=3.0)
    assert glimpse(tmp_path / "both").curve() == ("watch/run/loss", [0, 1, 2, 3, 4], [1.0] * 5)
    write_scalars(tmp_path / "theirs", range(3), lr=0.5, val_Loss=2.0)
    assert glimpse(tmp_path / "theirs").curve() == ("val_Loss", [0, 1, 2], [2.0] * 3)
    write_scalars(tmp_path / "none", range(3), accuracy=0.5)
    seen = glimpse(tmp_path / "none")
    assert seen.curve() == ("", [], []) and seen.last_step == 2 and seen.rate is None
    assert glimpse(tmp_path / "absent").last_step is None


def test_several_files_join_and_a_value_that_is_not_finite_stays(tmp_path):
    write_scalars(tmp_path, range(4), loss=float("nan"))
    write_scalars(tmp_path, range(4, 8), loss=1.0)
    _, steps, values = glimpse(tmp_path).curve()
    assert steps == [*range(8)] and all(map(math.isnan, values[:4])) and values[4:] == [1.0] * 4


@pytest.mark.parametrize("cut", [1, 30, 200])
def test_what_was_cut_off_or_damaged_is_left_out(tmp_path, cut):
    write_scalars(tmp_path, range(10), loss=1.0)
    (file,) = tmp_path.glob("events*")
    content = file.read_bytes()
    file.write_bytes(content[:-cut])
    assert glimpse(tmp_path).last_step < 9
    file.write_bytes(content[: len(content) // 2] + b"\xff" * 40 + content[len(content) // 2 + 40 :])
    assert glimpse(tmp_path).last_step is not None


def test_the_rate_is_that_of_the_last_facts_and_the_event_file_tells_the_health(tmp_path):
    with SummaryWriter(tmp_path) as board:
        writer = StepEventWriter(board)
        for step, rate in ((0, 0.1), (5, 0.025)):
            board.add_text("facts", json.dumps({"rates": [[[rate, 0.0], [9.0, 0.0]]]}), step)
        course = LossCourse(2.0, 0.5, True)
        found = summary_of(5, 6, ran=["DeadUnits"], could_not={}, failed={}, accepted=[], findings=[], causes=[], course=course)
        writer.write_findings(found, 5, "")
    listed = RunList()
    assert listed.health(tmp_path)["word"] == "Not examined"
    seen = listed.glimpse(tmp_path)
    assert (seen["rate"], seen["last_step"], seen["health"]["word"]) == (0.025, 5, "Healthy")
    assert listed.glimpse(tmp_path) is seen
    write_scalars(tmp_path, [7], loss=1.0)
    assert listed.glimpse(tmp_path)["last_step"] == 7


def test_the_worst_comes_first_and_what_a_cause_explains_is_not_counted():
    cause = {"kind": "cause", "rule": "BadBatch", "severity": "warning", "message": "One batch differs.", "numbers": [1]}
    explained = {"kind": "finding", "rule": "LossSpike", "severity": "warning", "message": "a", "number": 1}
    note = {"rule": "Mine", "severity": "odd", "why": "b"}
    found = health_of([cause, explained, note], None)
    records = [{"severity": "critical", "message": each} for each in (cause["message"], "Of another step.")]
    assert health_of([cause, explained, note], None, records)["others"] == found["others"] + 1  # a quoted record is told once
    assert found == {
        "severity": "warning",
        "word": "Warning",
        "sentence": "BadBatch: One batch differs.",
        "others": 1,
        "serves": False,
    }
    ran = {"has_learned": True}
    assert [health_of([], each)["word"] for each in (ran, {"has_learned": False}, None)] == [
        "Healthy",
        "No problem found",
        "Nothing found so far",
    ]
    assert health_of([note], ran)["serves"] and not health_of([], None)["serves"] and not health_of(None, None)["serves"]
    assert len(health_of([{"rule": "x", "why": "y" * 9999}], None)["sentence"]) == 401
