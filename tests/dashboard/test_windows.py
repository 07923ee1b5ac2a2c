"""Runs whose event files hold windows of steps: the page, `diff`, `doctor` and `compare` name and show them."""

from __future__ import annotations

import json
from logging import getLogger
from pathlib import Path

import numpy as np
import pytest

from lightning_hooks import StepView
from lightning_hooks.callbacks._loggers import LoggerWriter
from lightning_hooks.cli.main import main
from lightning_hooks.dashboard.api import Api
from lightning_hooks.dashboard.diff import diff
from lightning_hooks.dashboard.local_run import LocalRun
from lightning_hooks.dashboard.runs import LocalRuns
from lightning_hooks.dashboard.source import windows_of
from lightning_hooks.dashboard.tiles import difference, tile
from lightning_hooks.dashboard.tree import tree
from lightning_hooks.plan.row_index import RequestedRows, RowIndex
from lightning_hooks.records.disk_budget import DiskBudget
from lightning_hooks.records.saved_index import SavedIndex
from lightning_hooks.rules.schedule import EveryN
from lightning_hooks.stats.schema import MAX, MEAN, MIN
from lightning_hooks.tensorboard.own_board import OwnBoard

EVERY = EveryN()
ROWS = RowIndex(
    ["a", "b", "loss"],
    ["grad", "grad", "loss"],
    ["Linear", "Linear", ""],
    requested_rows=[
        RequestedRows("grad", ((EVERY, ("norm",)),), np.array([0, 1])),
        RequestedRows("loss", ((EVERY, ()),), np.array([2])),
    ],
)


class InWindows(DiskBudget):
    """Single steps up to one, then windows of four steps."""

    def __init__(self, begin: int = 4, level: int = 2) -> None:
        super().__init__(10**9)
        self._begin, self._to = begin, level

    def level(self, step: int, end: int | None) -> int:
        return self._to if step >= self._begin else 0


def write(folder: Path, steps: int = 34, factor_at: int = -1, budget: DiskBudget | None = None) -> Path:
    """A run of two rows of gradients; from a step on, the first row is twice as large."""
    board = OwnBoard(folder, {}, getLogger("test"))
    writer = LoggerWriter([board], lambda step: True, "watch/", budget=budget or InWindows(), has_layers=lambda logger: False)
    writer.write_start("", [], 0, indices=[SavedIndex(ROWS, scalars="watch/").to_json()])
    for step in range(steps):
        moments = np.tile([1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0], (3, 1))
        moments[0, [MEAN, MIN, MAX]] = (1 + step) * (2 if 0 <= factor_at <= step else 1)
        writer.consume(StepView(step, rows=ROWS, moments=moments, due=frozenset([EVERY]), summaries={"run/loss": 1.0}))
    writer.close(None)
    board.remove()
    return board.folder


def nodes(run: LocalRun) -> list:
    return tree(run.rows("grad", "norm"), run.about())


def test_a_window_fills_the_cells_of_its_steps(tmp_path: Path) -> None:
    run = LocalRun(write(tmp_path))
    assert windows_of(run, "grad", "norm") == [(step, step + 3) for step in range(4, 32, 4)] + [(32, 33)]
    cells = tile(run, "grad", "norm", nodes(run), 1, 0, 40)
    norms = np.arange(1.0, 35.0)
    expected = [*norms[:4], *(np.sqrt(np.square(norms[i : i + 4]).mean()) for i in range(4, 34, 4) for _ in norms[i : i + 4])]
    np.testing.assert_allclose(cells.least[0, :34], expected, rtol=1e-6)
    assert np.isnan(cells.least[:, 34:]).all()
    # A part of the map that begins and ends within windows, and cells that are wider than steps.
    np.testing.assert_allclose(tile(run, "grad", "norm", nodes(run), 1, 6, 10).least[0], np.array(expected)[6:10], rtol=1e-6)
    wide = tile(run, "grad", "norm", nodes(run), 3, 1, 4)
    np.testing.assert_allclose(wide.least[0], [expected[3], expected[6], expected[9]], rtol=1e-6)
    np.testing.assert_allclose(wide.greatest[0], [expected[5], expected[8], expected[11]], rtol=1e-6)


def test_the_page_is_told_of_windows(tmp_path: Path) -> None:
    folder = write(tmp_path)
    api = Api(LocalRuns(folder.parent))
    name = next(run["name"] for run in json.loads(api("runs", {}).body)["runs"])
    answer = json.loads(api("rows", {"run": name, "tensor": "grad", "stat": "norm"}).body)
    assert answer["windows"][:2] == [[4, 7], [8, 11]] and answer["windows"][-1] == [32, 33]


def test_runs_are_compared_where_their_windows_hold_the_same_steps(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a"), write(tmp_path / "b", factor_at=14)
    found = diff(a, b)
    assert found.first == 15 and found.parts[0].first_step == 12 and found.parts[0].name == "a"
    assert "equal before step 12; in the window of steps 12 to 15 1 of 3 rows differ" in str(found)
    other = write(tmp_path / "c", budget=InWindows(begin=100))
    said = str(diff(a, other))
    assert (
        "22 views of steps, from 4 to 32, that the other run holds in windows of other lengths; they are not compared" in said
    )
    first, second = LocalRun(a), LocalRun(other)
    cells = difference(first, second, "grad", "norm", [*zip(nodes(first), nodes(second), strict=True)], 1, 0, 34)
    assert (cells.least[:, :4] == 0).all() and np.isnan(cells.least[:, 4:]).all()


def test_the_doctor_says_which_steps_a_file_lacks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write(tmp_path, steps=60)
    main(["doctor", str(folder)])
    said = " ".join(capsys.readouterr().out.split())
    assert (
        "Its event file holds steps 4 to 59 only in windows of 4 steps, merged exactly, which the rules read as one step"
        in said
    )
    main(["doctor", str(folder), "--json"])
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert run["windows"] == {"first": 4, "last": 59, "shortest": 4, "longest": 4}


def test_compare_and_baseline_name_the_windows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, run = write(tmp_path / "good", steps=60), write(tmp_path / "run", steps=60, budget=InWindows(level=3))
    main(["compare", str(good), str(run)])
    said = " ".join(capsys.readouterr().out.split())
    assert "event file holds steps 4 to 59 only in windows of 4 to 8 steps" in said
    assert "The good runs: its event file holds steps 4 to 59 only in windows of 4 steps, merged exactly; a step there" in said
    main(["baseline", str(good), "-o", str(tmp_path / "good.json")])
    assert "a band there is that of the mean steps of windows" in capsys.readouterr().out
