"""Histograms that no rule names, and the steps at which histograms are measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch.loggers import TensorBoardLogger
from torch import nn

from lightning_hooks import StatsMonitor, Watch, instrument, read_run
from lightning_hooks.plan.defaults import draws_by_default
from lightning_hooks.records.consumer import StepConsumer
from lightning_hooks.records.step_view import StepView
from lightning_hooks.stats.schema import COUNT
from tests.callbacks.models import Net, ValNet, adamw, data, trainer_of
from tests.stats.kernels import stand_in

OUTPUTS = ("body.0", "body.1", "body.2", "body.3")


class Views(StepConsumer):
    def __init__(self) -> None:
        self.seen: list[StepView] = []

    def consume(self, view: StepView) -> None:
        self.seen.append(view)


def counted(view: StepView, tensor: str) -> dict[str, tuple[float, float]]:
    """The elements that the histogram of each row counts, and those that its moments count."""
    rows, names = view.rows.of(tensor)
    sums = view.histogram(rows).sum(1)
    return dict(zip(names, zip(sums.tolist(), view.moments[rows, COUNT].tolist(), strict=True), strict=True))


def steps_drawn(folder: Any, tensor: str, name: str) -> list[int]:
    """The steps at which the event file has a histogram of a row."""
    return [step for step, _, _ in read_run(folder).histograms[f"watch/{tensor}_histogram/{name}"]]


def views_of(root: Path, net: Net, monitor: StatsMonitor, **options: Any) -> list[StepView]:
    views = Views()
    monitor.consumers.append(views)
    trainer_of(root, monitor, **options).fit(net, data(), data(2) if isinstance(net, ValNet) else None)
    return views.seen


def test_rules_without_statistics_measure_histograms_at_an_interval(tmp_path: Path) -> None:
    board = TensorBoardLogger(tmp_path)
    views = views_of(tmp_path, Net(dropout=0.0), StatsMonitor(histogram_every_n_steps=3), logger=board)
    for view in views:
        is_due = view.step in (2, 5)
        for tensor in ("output", "output_grad", "param", "grad", "update"):
            for name, (in_histogram, measured) in counted(view, tensor).items():
                assert measured > 0 and in_histogram == (measured if is_due else 0.0), (view.step, tensor, name)
        assert view.stat("output", "p50").measured.all() == is_due
    assert steps_drawn(board.log_dir, "output", "body.0") == steps_drawn(board.log_dir, "update", "body.0.bias") == [2, 5]


@pytest.mark.skipif(stand_in.missing() is not None, reason=str(stand_in.missing()))
@pytest.mark.parametrize("through", [True, False], ids=["by C++", "by Triton"])
def test_a_device_counts_what_the_cpu_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, through: bool) -> None:
    rules = [
        Watch(modules="*", select="layers", tensors=("output", "output_grad", "input")),
        Watch(modules="body.2", tensors="output", stats="dead_units", every_n_steps=3),
        Watch(params="*", tensors=("param", "grad", "update")),
        Watch(params="body.0.*", tensors="state.exp_avg", stats="p90"),
    ]

    def counts() -> list[Any]:
        torch.manual_seed(0)
        monitor = StatsMonitor(rules, histogram_every_n_steps=3)
        options = {"logger": TensorBoardLogger(tmp_path), "accumulate_grad_batches": 2, "max_epochs": 2}
        views = views_of(tmp_path, Net(adamw, dropout=0.0), monitor, **options)
        rows = np.flatnonzero(views[0].rows.kept["histogram"].have)
        return [(view.step, view.histogram(rows)) for view in views]

    want = counts()
    device = stand_in.install(monkeypatch, through=through)
    got = counts()
    assert "count_list" in device.from_python and "count_one" in device.from_python
    assert [step for step, _ in got] == [step for step, _ in want] and len(want) == 6
    for (step, here), (_, there) in zip(want, got, strict=True):
        assert np.array_equal(here, there) and (here.sum() > want[0][1].sum()) == (step in (2, 5)), step


def test_rules_without_statistics_measure_no_histograms_where_no_kernel_counts() -> None:
    on_meta = nn.Linear(2, 3, device="meta")
    assert draws_by_default(nn.Linear(2, 3)) and not draws_by_default(on_meta)


def test_of_a_list_of_steps_those_that_are_far_enough_apart_measure_histograms(tmp_path: Path) -> None:
    board = TensorBoardLogger(tmp_path)
    monitor = StatsMonitor(every_n_steps=[0, 1, 2, 4, 5], histogram_every_n_steps=3)
    views = views_of(tmp_path, Net(dropout=0.0), monitor, logger=board)
    measured = [view.step for view in views if view.stat("output", "p50").measured.all()]
    assert [view.step for view in views] == [0, 1, 2, 4, 5]
    assert measured == steps_drawn(board.log_dir, "output", "body.0") == [0, 4]


def test_the_other_numbers_do_not_depend_on_histograms(tmp_path: Path) -> None:
    fits = []
    for interval in (1, 2, 50):
        torch.manual_seed(3)
        fits.append(views_of(tmp_path, Net(dropout=0.0), StatsMonitor(histogram_every_n_steps=interval)))
    for of_step in zip(*fits, strict=True):
        for view in of_step:  # Counting a histogram adds up in another order.
            np.testing.assert_allclose(view.moments, of_step[0].moments, rtol=1e-12, atol=1e-15)


def test_rules_with_schedules_of_their_own_measure_only_the_rows_that_are_due(tmp_path: Path) -> None:
    rules = [
        Watch(modules="*", select="layers", tensors="output"),
        Watch(modules="body.0", tensors="output", stats=["histogram", "p50"], every_n_steps=2),
    ]
    for view in views_of(tmp_path, Net(dropout=0.0), StatsMonitor(rules, histogram_every_n_steps=3)):
        drawn = {name for name, (in_histogram, _) in counted(view, "output").items() if in_histogram}
        expected = {"body.0"} if view.step in (1, 3) else set(OUTPUTS) if view.step in (2, 5) else set()
        assert drawn == expected, view.step
        assert set(np.array(OUTPUTS)[view.stat("output", "p50").measured]) == drawn


def test_a_rule_that_names_histograms_has_them_at_each_of_its_steps(tmp_path: Path) -> None:
    monitor = StatsMonitor([Watch(modules="body.1", tensors="output", stats="histogram")])
    views = views_of(tmp_path, Net(dropout=0.0), monitor)
    assert all(in_histogram == measured > 0 for view in views for in_histogram, measured in counted(view, "output").values())


def test_a_group_has_the_histograms_of_its_members(tmp_path: Path) -> None:
    rules = [Watch(modules=["body.0", "body.3"], tensors="output", stats=["mean", "histogram"], group_by=1, every_n_steps=2)]
    rules.append(Watch(modules="body.1", tensors="output", stats=["mean"]))
    for view in views_of(tmp_path, Net(dropout=0.0), StatsMonitor(rules)):
        rows, names = view.rows.of("output")
        group = view.histogram(rows[names.index("body") : names.index("body") + 1])
        assert group.sum() == (4 * (8 + 3) if view.step % 2 else 0.0)


def test_other_stages_have_only_histograms_that_rules_name(tmp_path: Path) -> None:
    views = views_of(tmp_path, ValNet(dropout=0.0), StatsMonitor(stages=["train", "validate"], histogram_every_n_steps=2))
    validated = [view for view in views if view.stage == "validate"]
    assert validated and all("histogram" not in view.rows.kept for view in validated)
    rules = [Watch(modules="body.0", tensors="output", stats="histogram")]
    views = views_of(tmp_path, ValNet(dropout=0.0), StatsMonitor(rules, stages="validate"))
    assert [counted(view, "output") for view in views] == [{"body.0": (64.0, 64.0)}]


@pytest.mark.parametrize("has_logdir", [True, False])
def test_a_plain_loop_draws_histograms_into_its_event_file(tmp_path: Path, has_logdir: bool) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(3, 2))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with instrument(net, [StatsMonitor()], optimizer=optimizer, logdir=tmp_path if has_logdir else None) as watched:
        for _ in range(101):
            optimizer.zero_grad()
            net(torch.ones(4, 3)).sum().backward()
            optimizer.step()
    assert watched.view is not None and ("histogram" in watched.view.rows.kept) == has_logdir
    if has_logdir:
        assert steps_drawn(tmp_path / "run_0", "output", "0") == [49, 99]
