"""Which curve shows a finding, and which curves the strip offers."""

import json

import pytest

from lightning_hooks.dashboard import curves
from lightning_hooks.dashboard.api import Api
from lightning_hooks.dashboard.curves import offered
from lightning_hooks.dashboard.runs import LocalRuns
from lightning_hooks.health.finding import Cause, Event
from lightning_hooks.health.rule import Severity
from lightning_hooks.health.rules import DEFAULT_RULES

from .runs import NAMES, write_run, write_scalars


def ask(folder, **args):
    return json.loads(Api(LocalRuns(folder))("run", {"run": ".", **args}).body)


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        (
            ["lr-Adam", "train_loss", "run/grad_norm", "run/loss"],
            ["run/loss", "lr-Adam", "train_loss", "run/grad_norm"],
        ),
        (["val_run/loss", "watch/run/loss"], ["watch/run/loss", "val_run/loss"]),
        (["accuracy", "Loss/train", "run/grad_norm"], ["Loss/train", "accuracy", "run/grad_norm"]),
        (["accuracy", "b/c"], ["accuracy", "b/c"]),
        (["grad_norm/fc", "val/grad_norm/a/b", "grad_norms/x", "transform_acted/0_Clip"], ["grad_norms/x"]),
        ([], []),
    ],
)
def test_the_strip_offers_the_loss_first_and_no_scalars_of_rows(tags, expected):
    assert offered(tags, {"grad_norm", "val/grad_norm"}) == expected


def test_the_strip_of_a_run_offers_what_its_module_logs(tmp_path):
    write_run(tmp_path, range(3), scalars={f"grad_norm/{NAMES[0]}": 1.0, f"watch/grad_norm/{NAMES[0]}": 1.0, "run/loss": 2.0})
    write_scalars(tmp_path, range(3), train_loss=1.0, val__accuracy=0.5)
    assert ask(tmp_path)["strip"] == ["run/loss", "train_loss", "val/accuracy", "run/grad_norm"]


def test_every_rule_is_shown_by_a_statistic_that_it_reads():
    """A rule that reads numbers of rows has a curve of its own, or the usual ones show it."""
    needs = {rule.name: rule.needs for rule in DEFAULT_RULES}
    assert not {*curves._STATISTICS, *curves._TABLES, *curves._SCALARS} - {*needs}
    for rule, stats in curves._STATISTICS.items():
        read = {stat for _, stat in needs[rule]}
        assert stats[0] in read, rule


def finding(**fields):
    return json.dumps(fields) + "\n"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"rule": "GradientSpike", "tensor": "grad", "name": NAMES[0]}, {"tensor": "grad", "stat": "norm", "row": NAMES[0]}),
        ({"rule": "NonFinite", "tensor": "grad", "name": NAMES[0]}, {"tensor": "grad", "stat": "nonfinite", "row": NAMES[0]}),
        (
            {"rule": "NonFinite", "tensor": "grad", "stat": "std", "name": NAMES[0]},
            {"tensor": "grad", "stat": "std", "row": NAMES[0]},
        ),
        ({"rule": "NotInOptimizer", "name": NAMES[0]}, None),  # without updates, and a gradient would look healthy
        ({"rule": "Mine", "tensor": "elsewhere", "name": NAMES[0]}, {"tensor": "grad", "stat": "norm", "row": NAMES[0]}),
        ({"rule": "Mine", "tensor": "grad", "name": "no row"}, None),
        ({"rule": "LossSpike"}, {"tag": "run/loss"}),
        ({"rule": "GradientsRepeat"}, {"tag": "run/grad_norm"}),
        ({"rule": "GradientsKept"}, {"tag": "run/grad_norm"}),
        ({"rule": "SlowLearning"}, {"tag": "run/loss"}),  # the run has no size of updates
    ],
)
def test_the_curve_of_a_finding_is_one_that_the_run_has(tmp_path, fields, expected):
    write_run(tmp_path, range(3), scalars={"run/loss": 2.0})
    (tmp_path / "findings.jsonl").write_text(finding(**fields))
    (found,) = ask(tmp_path)["findings"]
    assert found.get("curve") == expected


def test_a_learning_rate_that_is_too_high_is_shown_by_the_size_of_updates(tmp_path):
    cause = Cause("LearningRateTooHigh", "Steps are too large.", ("DeadUnits/net.0",), severity=Severity.CRITICAL)
    (tmp_path / "findings.jsonl").write_text(json.dumps(Event("cause", 3, cause=cause).to_dict()) + "\n")
    write_run(tmp_path, range(3), scalars={"watch/run/loss": 2.0})
    (found,) = ask(tmp_path)["findings"]
    assert "curve" not in found  # the page then takes the curve of a finding
    write_run(tmp_path, range(3, 6), scalars={"watch/run/update_ratio": 2.0})
    (found,) = ask(tmp_path)["findings"]
    assert found["curve"] == {"tag": "watch/run/update_ratio"}
