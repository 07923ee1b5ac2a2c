"""`instrument(model)` watches what `StatsMonitor()` watches, and with `logdir` writes what it writes."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from lightning_hooks import Apply, Hook, RuleError, Watch, instrument, read_run
from lightning_hooks.dashboard.report import write_report
from lightning_hooks.engine.plain_loop.rules import read_rules
from lightning_hooks.plan.defaults import DEFAULT_WATCH
from lightning_hooks.transforms import Scale

NOTHING = {"watch": None, "apply": (), "hooks": (), "health": False, "has_optimizer": True, "writes": False}


def train(steps=3, **options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    views = []
    with instrument(model, optimizer=optimizer, **options) as watched:
        for _ in range(steps):
            optimizer.zero_grad()
            loss = model(torch.ones(2, 4)).square().mean()
            watched.note_loss(loss)
            loss.backward()
            optimizer.step()
            views.append(watched.record)
    return views


def test_without_rules_it_watches_what_a_monitor_watches():
    (view,) = train(steps=1)
    assert {*zip(view.rows.tensors, view.rows.names, strict=True)} == {
        *((tensor, name) for tensor in ("output", "output_grad") for name in "012"),
        *((tensor, f"{i}.{name}") for tensor in ("param", "grad", "update") for i in "02" for name in ("weight", "bias")),
        ("loss", "loss"),
    }


@pytest.mark.parametrize(
    ("given", "is_default"),
    [
        ({}, True),
        ({"watch": ()}, False),
        ({"apply": [Apply(Scale(1.0), params="*")]}, False),
        ({"hooks": [Hook(print, kind="forward", modules="*")]}, False),
        ({"apply": [Apply(Scale(1.0), params="*")], "writes": True}, True),
        ({"watch": [Watch(params="*")], "writes": True}, False),
    ],
    ids=["nothing", "empty list", "apply", "hooks", "event file", "rules"],
)
def test_the_default_rules_are_for_those_who_ask_for_nothing_else(given, is_default):
    assert (read_rules(**{**NOTHING, **given}).watch == list(DEFAULT_WATCH)) == is_default


def test_without_an_optimizer_the_default_rules_have_the_tensors_that_exist():
    model = nn.Sequential(nn.Linear(4, 1))
    with instrument(model) as watched:
        model(torch.ones(2, 4)).sum().backward()
        watched.step()
    assert {*watched.record.rows.tensors} == {"output", "output_grad", "param", "grad", "loss"}


def test_an_event_file_holds_every_step_and_the_page_shows_it(tmp_path):
    views = train(logdir=tmp_path)
    run = read_run(tmp_path / "run_0")
    assert [view.step for view in run.views()] == [0, 1, 2]
    for view, again in zip(views, run.views(), strict=True):
        assert again.rows.names == view.rows.names
        np.testing.assert_allclose(again.stat("grad", "norm").values, view.stat("grad", "norm").values, rtol=1e-6)
        assert again.facts == view.facts and again.structure == view.structure
    assert write_report(tmp_path / "run_0", tmp_path / "report.html") > 10_000


def test_each_run_has_a_folder_which_is_that_of_the_findings_too(tmp_path):
    train(logdir=tmp_path)
    train(logdir=tmp_path, health=True)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["run_0", "run_1"]
    assert (tmp_path / "run_1" / "summary.json").exists()


def test_a_folder_that_cannot_be_written_is_refused_at_once(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RuleError, match="^logdir: cannot write to "):
        train(logdir=tmp_path / "file")
    with pytest.raises(RuleError, match="^logdir must be a folder of this machine, got 's3://bucket'"):
        train(logdir="s3://bucket")
    assert list(Path(tmp_path).iterdir()) == [tmp_path / "file"]


def test_its_tags_are_below_the_default_prefix_and_its_tables_are_not(tmp_path):
    views = train(logdir=tmp_path)
    run = read_run(tmp_path / "run_0")
    assert run.scalars and {tag.partition("/")[0] for tag in run.scalars} == {"watch"}
    assert "watch/run/rules" in run.texts and run.table("grad", "norm").steps.tolist() == [0, 1, 2]
    losses = [view.summaries["run/loss"] for view in run.views()]
    assert losses == pytest.approx([view.summaries["run/loss"] for view in views])
