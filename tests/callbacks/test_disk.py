"""The budget of a run on disk: most of it holds single steps, the rest windows of steps, and no step is lost."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import replace
from logging import getLogger
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import TensorBoardLogger
from torch import nn

from lightning_hooks import HealthMonitor, RuleError, StatsMonitor, StepView, Watch, instrument, read_run
from lightning_hooks.callbacks._loggers import LoggerWriter
from lightning_hooks.records.disk_budget import DiskBudget
from lightning_hooks.records.limits import CHARTS, Limits
from lightning_hooks.records.saved_index import SavedIndex
from lightning_hooks.rules.schedule import EveryN
from lightning_hooks.stats.accumulators.store import no_numbers
from lightning_hooks.stats.schema import COUNT, M2, MAX, MEAN, MIN, NONFINITE
from lightning_hooks.tensorboard.own_board import OwnBoard
from lightning_hooks.tensorboard.run_files import event_files
from tests.callbacks.models import Net, data, trainer_of
from tests.consumers import Keeps

pytestmark = pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint")
STEPS = 900


def wide(layers: int = 24) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(3, 3) for _ in range(layers)))


def loop(logdir: Path | None, monitors: Sequence[Any], steps: int = 1, layers: int = 24) -> None:
    model = wide(layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with instrument(model, monitors, optimizer=optimizer, logdir=logdir):
        for step in range(steps):
            optimizer.zero_grad()
            model(torch.full((2, 3), 1.0 + step % 7)).square().mean().backward()
            optimizer.step()


class Wide(Net):
    """A fit of `wide`."""

    def __init__(self) -> None:
        super().__init__()
        self.body = wide()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.body(batch[0][:, :3]).square().mean()


def fit(folder: Path, *callbacks: Callback, steps: int, resume: Path | None = None, **options: Any) -> None:
    trainer = trainer_of(folder, *callbacks, max_steps=steps, logger=TensorBoardLogger(folder, "", ""), **options)
    trainer.fit(Wide(), data(steps), ckpt_path=resume)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> StepView:
    """The view of one step of a model of six layers, at which histograms are due too."""
    keeps = Keeps()
    loop(tmp_path_factory.mktemp("one"), [StatsMonitor(consumers=[keeps])], steps=50, layers=6)
    return keeps.views[49]


class Simulated:
    """A run whose writer gets views without a training: 200 of them take a megabyte.

    Args:
        folder: that of the event file is in it.
        one: the view of a step; that of each other step has other numbers.
        limit: the budget in bytes.
        has_layers: whether scalars of every step are asked for.
    """

    def __init__(self, folder: Path, one: StepView, limit: int | None = 1_000_000, *, has_layers: bool = False) -> None:
        self.budget = DiskBudget(limit)
        self.board = OwnBoard(folder, {}, getLogger("test"))
        self.views: list[StepView] = []
        self._one, self._generator = one, np.random.default_rng(0)
        self.writer = LoggerWriter(
            [self.board], lambda step: True, "watch/", 50, has_layers=lambda logger: has_layers, budget=self.budget
        )
        self.writer.limits = Limits({"train": one.rows}, 60, 20, (), CHARTS)
        self.writer.write_start("", [], 0, indices=[SavedIndex(one.rows, scalars="watch/").to_json()])

    def run(self, steps: int) -> Simulated:
        """The next steps."""
        for _ in range(steps):
            step, moments = len(self.views), self._one.moments.copy()
            factor = self._generator.lognormal(size=len(moments))
            moments[:, [MEAN, MIN, MAX]] *= factor[:, None]
            moments[:, M2] *= factor**2
            loss = float(moments[self._one.rows.of("loss")[0], MEAN][0])
            summaries = {"run/loss": loss, "run/overhead": 0.1 * step}
            is_drawn = step % 50 == 49
            kept = {name: x if is_drawn else no_numbers(*x.shape) for name, x in self._one.kept.items()}
            due = self._one.due if is_drawn else self._one.due - {EveryN(50)}
            view = replace(self._one, step=step, moments=moments, summaries=summaries, kept=kept, due=due)
            self.views.append(view)
            self.writer.consume(view)
        return self

    @property
    def folder(self) -> Path:
        return self.board.folder


def views_of(folder: Path, **which: Any) -> list[StepView]:
    return [*read_run(folder).views(**which)]


def steps_in(views: Sequence[StepView]) -> list[int]:
    return [step for view in views for step in range(view.steps[0], view.steps[1] + 1)]


def singles(views: Sequence[StepView]) -> set[int]:
    return {view.step for view in views if view.window is None}


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in event_files(folder))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory, one: StepView) -> tuple[Path, list[StepView]]:
    """The folder of a run with a budget of a megabyte, and its views of all steps."""
    simulated = Simulated(tmp_path_factory.mktemp("disk"), one).run(STEPS)
    simulated.writer.close(None)
    return simulated.folder, simulated.views


def test_a_run_stays_within_its_budget_and_loses_no_step(written: tuple[Path, list[StepView]]) -> None:
    folder, _ = written
    views = views_of(folder)
    assert size_of(folder) <= 1_000_000
    assert steps_in(views) == [*range(STEPS)]
    assert [*singles(views)] == [*range(len(singles(views)))] and len(singles(views)) > 150
    lengths = [view.window.count for view in views if view.window is not None]
    assert lengths[0] == 2 and 16 <= max(lengths) <= STEPS / 3
    assert all((view.step + 1) % view.window.count == 0 for view in views[:-2] if view.window is not None)


def test_a_window_has_the_numbers_of_its_steps(written: tuple[Path, list[StepView]]) -> None:
    folder, seen = written
    for view in views_of(folder):
        first, last = view.steps
        parts = seen[first : last + 1]
        for tensor in ("grad", "output", "param", "update"):
            norms = np.stack([part.stat(tensor, "norm").values for part in parts])
            np.testing.assert_allclose(view.stat(tensor, "norm").values, np.sqrt(np.square(norms).mean(0)), rtol=1e-4)
            extremes = np.stack([part.stat(tensor, "max").values for part in parts])
            np.testing.assert_allclose(view.stat(tensor, "max").values, extremes.max(0), rtol=1e-6)
            assert (view.stat(tensor, "count").values == parts[0].stat(tensor, "count").values).all()
        losses = [part.summaries["run/loss"] for part in parts]
        assert view.summaries["run/loss"] == pytest.approx(np.mean(losses), rel=1e-5)
        assert view.summaries["run/overhead"] == pytest.approx(0.1 * last, rel=1e-5)
        if view.window is not None:
            assert view.window.extremes["run/loss"] == pytest.approx((min(losses), max(losses)))
            assert (view.window.measured[view.rows.of("grad")[0]] == len(parts)).all()


def test_a_table_says_which_steps_a_line_holds(written: tuple[Path, list[StepView]]) -> None:
    run = read_run(written[0])
    table, views = run.table("grad", "norm"), views_of(written[0])
    assert [*zip(table.first_steps.tolist(), table.steps.tolist(), strict=True)] == [view.steps for view in views]
    assert "moments.steps" not in [stat for _, stat in run.tensors()]


def test_scalars_and_histograms_are_thinned_as_tables(written: tuple[Path, list[StepView]]) -> None:
    run, views = read_run(written[0]), views_of(written[0])
    assert run.scalars["watch/run/loss"][0].tolist() == [view.step for view in views]
    drawn = [step for step, *_ in next(iter(run.histograms.values()))]
    assert drawn[:3] == [49, 99, 149] and {*drawn} <= {view.step for view in views} and len(drawn) < STEPS / 50


def test_the_limit_none_writes_every_step(tmp_path: Path, one: StepView) -> None:
    folder = Simulated(tmp_path, one, None).run(350).folder
    assert [view.steps for view in views_of(folder)] == [(step, step) for step in range(350)] and size_of(folder) > 1_000_000


def test_a_killed_process_loses_the_open_window_and_what_is_held_back_at_most(tmp_path: Path, one: StepView) -> None:
    views = views_of(Simulated(tmp_path, one).run(STEPS).folder)  # the writer is never closed
    assert steps_in(views) == [*range(views[-1].step + 1)]
    assert STEPS - views[-1].step - 1 <= 2 * max(view.window.count for view in views if view.window is not None) + 8


def test_steps_around_a_finding_are_single(tmp_path: Path, one: StepView) -> None:
    simulated = Simulated(tmp_path, one, 5_200_000).run(1_203)
    simulated.writer.note_finding()
    simulated.run(100)
    simulated.writer.close(None)
    views = views_of(simulated.folder)
    begun = next(view.steps[0] for view in views if view.window is not None)
    assert steps_in(views) == [*range(1_303)] and begun < 1_150
    assert {step for step in singles(views) if step > begun} == {*range(1_195, 1_211)}


def test_an_error_keeps_the_last_steps_single(tmp_path: Path, one: StepView) -> None:
    simulated = Simulated(tmp_path, one, 5_200_000).run(1_203)
    simulated.writer.close(RuntimeError("over"))
    views = views_of(simulated.folder)
    assert steps_in(views) == [*range(1_203)] and {*range(1_195, 1_203)} <= singles(views)


def test_a_checkpoint_writes_what_is_held_back_once_in_a_window(tmp_path: Path, one: StepView) -> None:
    simulated = Simulated(tmp_path, one).run(500)
    simulated.writer.before_checkpoint()
    assert views_of(simulated.folder)[-1].step == 499
    size = size_of(simulated.folder)
    simulated.run(1).writer.before_checkpoint()
    assert size_of(simulated.folder) == size
    simulated.run(99).writer.close(None)
    assert steps_in(views_of(simulated.folder)) == [*range(600)]


def test_scalars_that_are_asked_for_stay_while_tables_are_merged(tmp_path: Path, one: StepView) -> None:
    simulated = Simulated(tmp_path, one, has_layers=True).run(400)
    simulated.writer.close(None)
    run = read_run(simulated.folder)
    assert run.scalars["watch/grad_norm/0.weight"][0].tolist() == run.scalars["watch/run/loss"][0].tolist() == [*range(400)]
    assert len(run.table("grad", "norm").steps) < 300 and steps_in(views_of(simulated.folder)) == [*range(400)]
    assert [step for step, *_ in next(iter(run.histograms.values()))] == [*range(49, 400, 50)]


def test_a_number_that_is_not_finite_in_one_step_is_counted_in_its_window(tmp_path: Path, one: StepView) -> None:
    simulated = Simulated(tmp_path, one).run(500)
    bad = one.moments.copy()
    bad[:, [MEAN, M2, MIN, MAX]], bad[:, NONFINITE] = np.nan, bad[:, COUNT]
    simulated.writer.consume(replace(one, step=500, moments=bad))
    simulated.views.append(one)
    simulated.run(200).writer.close(None)
    view = next(view for view in views_of(simulated.folder) if 500 in range(view.steps[0], view.steps[1] + 1))
    assert view.window is not None and view.window.count > 1
    series = view.stat("grad", "nonfinite").values
    assert (series == one.stat("grad", "count").values).all() and np.isnan(view.stat("grad", "norm").values).all()


def test_a_plain_loop_says_once_when_windows_begin(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loop(tmp_path, [StatsMonitor(disk="1 MB"), HealthMonitor()], steps=130)
    (said,) = [line for line in capsys.readouterr().err.splitlines() if "windows of steps" in line]
    assert "keeps this run within disk='1 MB'" in said and "disk=None writes every step" in said
    views = views_of(tmp_path / "run_0")
    assert size_of(tmp_path / "run_0") <= 1_000_000 and steps_in(views) == [*range(130)] and views[-1].window is not None


def test_two_monitors_share_the_budget_of_a_fit_and_a_resume_goes_on_with_windows(tmp_path: Path) -> None:
    def monitors() -> list[Callback]:
        return [StatsMonitor(disk=1), StatsMonitor([Watch(params="body.3.*")], prefix="second/", every_n_steps=2)]

    saver = ModelCheckpoint(tmp_path / "saved", every_n_train_steps=113, save_top_k=-1, filename="{step}")
    fit(tmp_path, *monitors(), saver, steps=150, enable_checkpointing=True)
    first, second = (views_of(tmp_path, prefix=prefix) for prefix in ("", "second/"))
    assert steps_in(first) == [*range(150)] and second[-1].step == 149 and len(second) < 60
    # The rules of the second monitor are a user's own: its scalars stay, and do not count.
    assert read_run(tmp_path).scalars["second/grad_norm/body.3.weight"][0].tolist() == [*range(1, 150, 2)]
    assert size_of(tmp_path) <= 1_100_000
    assert any(view.step == 112 for view in first)
    resume = tmp_path / "saved" / "step=113.ckpt"
    fit(tmp_path, *monitors(), saver, steps=170, resume=resume, enable_checkpointing=True)
    resumed = views_of(tmp_path)
    assert {*steps_in(resumed)} == {*range(170)} and len([step for step in singles(resumed) if step > 113]) < 3


def test_two_budgets_are_refused_when_a_fit_starts(tmp_path: Path) -> None:
    monitors = StatsMonitor(disk="100 MB"), HealthMonitor(disk=None)
    says = "disk: StatsMonitor has '100 MB' and HealthMonitor has None, but the budget belongs to the run"
    with pytest.raises(RuleError, match=says):
        fit(tmp_path, *monitors, steps=1)
    with pytest.raises(RuleError, match=says):
        loop(tmp_path, monitors)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit(tmp_path, StatsMonitor(disk=200), HealthMonitor(disk="0.2 GB"), StatsMonitor(prefix="more/"), steps=1)


@pytest.mark.parametrize("monitor", [StatsMonitor, HealthMonitor])
def test_a_bad_budget_is_refused_at_once(monitor: Any) -> None:
    for bad in ("a lot", 0, math.nan, True):
        with pytest.raises(RuleError, match="disk must be a number of megabytes or a text such as '256 MB'"):
            monitor(disk=bad)
    assert repr(monitor(disk="1 GB")) == f"{monitor.__name__}(disk='1 GB')" and repr(monitor()) == f"{monitor.__name__}()"
