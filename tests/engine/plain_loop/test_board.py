"""A plain loop with a `logdir` has an event file, as a Trainer has; each monitor writes what its options say."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from lightning_hooks import Apply, GradientTransforms, HealthMonitor, RuleError, StatsMonitor, Watch, instrument, read_run
from lightning_hooks.dashboard.report import write_report
from lightning_hooks.transforms import Scale


def train(callbacks=None, steps=3, **options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    views = []
    with instrument(model, callbacks, optimizer=optimizer, **options) as watched:
        for _ in range(steps):
            optimizer.zero_grad()
            loss = model(torch.ones(2, 4)).square().mean()
            watched.note_loss(loss)
            loss.backward()
            optimizer.step()
            views.append(watched.view)
    return views


def test_without_arguments_it_watches_what_a_monitor_watches_says_so_and_writes_to_the_default_folder(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (view,) = train([StatsMonitor()], steps=1)
    assert {*zip(view.rows.tensors, view.rows.names, strict=True)} == {
        *((tensor, name) for tensor in ("output", "output_grad") for name in "012"),
        *((tensor, f"{i}.{name}") for tensor in ("param", "grad", "update") for i in "02" for name in ("weight", "bias")),
        ("loss", "loss"),
    }
    assert capsys.readouterr().err == "" and not list(tmp_path.iterdir())
    (with_health,) = train(steps=1)
    assert {*with_health.rows.names} == {*view.rows.names}
    first, last = capsys.readouterr().err.splitlines()
    assert first.startswith("StatsMonitor watches 3 modules and 4 parameters. To see it: lightning-hooks view ")
    assert first.endswith("lightning_hooks_logs") and last.startswith("No problem found in 1 step")
    assert (tmp_path / "lightning_hooks_logs" / "run_0" / "findings.jsonl").exists()
    (own,) = train([StatsMonitor(), HealthMonitor()], steps=1)
    assert capsys.readouterr().err.startswith("StatsMonitor watches 3 modules") and len(list(tmp_path.iterdir())) == 1


def test_without_an_optimizer_the_default_rules_have_the_tensors_that_exist():
    model = nn.Sequential(nn.Linear(4, 1))
    with instrument(model, [StatsMonitor()]) as watched:
        model(torch.ones(2, 4)).sum().backward()
        watched.step()
    assert {*watched.view.rows.tensors} == {"output", "output_grad", "param", "grad", "loss"}


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
    train([StatsMonitor()], logdir=tmp_path)
    train(logdir=tmp_path)
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


@pytest.mark.filterwarnings("ignore:.*max_scalars=0")
def test_a_monitor_may_have_a_folder_of_its_own_or_write_nothing(tmp_path):
    silent, own = StatsMonitor(loggers=[]), StatsMonitor(prefix="own/", logdir=tmp_path / "own", max_scalars=0)
    train([silent, own])
    assert [path.name for path in tmp_path.iterdir()] == ["own"] and silent.latest["grad_norm/0.weight"] > 0
    run = read_run(tmp_path / "own" / "run_0")
    assert {tag.partition("/")[0] for tag in run.scalars} == {"own"} and not any("grad_norm/" in tag for tag in run.scalars)
    assert run.table("grad", "norm", prefix="own/").steps.tolist() == [0, 1, 2]


def test_a_report_is_left_when_the_loop_ends(tmp_path):
    train([StatsMonitor(report=tmp_path / "report.html")], logdir=tmp_path)
    assert (tmp_path / "report.html").stat().st_size > 10_000
    with pytest.raises(RuleError, match="^report='report.html' is made of an event file, and the loop writes none"):
        train([StatsMonitor(report="report.html")])


@pytest.mark.parametrize(
    ("monitor", "message"),
    [
        (
            StatsMonitor(stages=["train", "validate"]),
            r"^stages: instrument knows one stage, 'train'; got \['train', 'validate'\]",
        ),
        (StatsMonitor(loggers="CSVLogger"), "^loggers: a plain loop has no logger 'CSVLogger': 'all' and 'tensorboard' stand"),
    ],
)
def test_an_option_without_meaning_in_a_loop_is_refused(monitor, message, tmp_path):
    with pytest.raises(RuleError, match=message):
        train([monitor], logdir=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_two_monitors_of_one_table_write_and_keep_what_each_measured(tmp_path):
    before, after = (
        StatsMonitor(),
        StatsMonitor([Watch(params="*", tensors="grad", stats="norm")], prefix="after/", every_n_steps=2),
    )
    train([before, GradientTransforms([Apply(Scale(0.5), params="*")]), after], logdir=tmp_path)
    assert after.latest["grad_norm/0.weight"] > 0 and "output_std/0" not in after.latest
    run = read_run(tmp_path / "run_0")
    assert run.table("grad", "norm", prefix="after/").steps.tolist() == [1]
    (halved,), whole = run.table("grad", "norm", prefix="after/").values, run.table("grad", "norm").values[1]
    np.testing.assert_allclose(halved, whole / 2, rtol=1e-6)


def test_two_monitors_with_the_same_tags_are_refused():
    with pytest.raises(RuleError, match="^prefix: two StatsMonitors would write "):
        train([StatsMonitor(), StatsMonitor()])


def test_a_callback_is_in_one_block_at_a_time():
    model, monitor = nn.Sequential(nn.Linear(1, 1)), StatsMonitor()
    with instrument(model, monitor) as watched:
        model(torch.ones(1)).sum().backward()
        watched.step()
        with pytest.raises(RuleError, match="^StatsMonitor is in use by a run that has not ended"):
            instrument(model, monitor)
    first = monitor.latest
    with instrument(model, monitor) as watched:
        model(torch.ones(1) * 2).sum().backward()
        watched.step()
    assert monitor.latest["grad_norm/0.weight"] == 3 * first["grad_norm/0.weight"]


@pytest.mark.parametrize(
    ("callbacks", "message"),
    [
        ([], "^callbacks is an empty list; give at least one, or omit it for StatsMonitor() and HealthMonitor()"),
        ([StatsMonitor], r"^callbacks\[0\] is the class StatsMonitor; give an object of it"),
        (
            [Watch(params="*")],
            r"^callbacks\[0\] must be a callback of lightning_hooks, .*; put rules into StatsMonitor",
        ),
        ([StatsMonitor(), print], r"^callbacks\[1\] must be a callback of lightning_hooks, got <built-in function print>"),
        ("StatsMonitor", r"^callbacks must be a list such as \[StatsMonitor\(\), HealthMonitor\(\)\], got 'StatsMonitor'"),
        (torch.optim.SGD([torch.ones(1)]), "^callbacks must be a list .*; give SGD as optimizer=$"),
    ],
)
def test_a_list_of_something_else_is_refused(callbacks, message):
    with pytest.raises(RuleError, match=message.replace("() and HealthMonitor()", r"\(\) and HealthMonitor\(\)")):
        instrument(nn.Linear(1, 1), callbacks)


def test_a_callback_that_is_twice_in_the_list_acts_once():
    model = nn.Linear(1, 1)
    halves = GradientTransforms([Apply(Scale(0.5), params="*", when="backward")])
    with pytest.warns(UserWarning, match="^GradientTransforms appears 2 times in the list of instrument; it acts once"):
        block = instrument(model, [halves, halves])
    with block:
        model(torch.ones(1)).sum().backward()
    assert model.bias.grad.item() == 0.5
