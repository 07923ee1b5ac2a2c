"""What runs take on disk: simulated nights of workloads A and D, a real run of a tiny model, and the first picture of the page.

`python -m benchmarks.long_runs` prints the figures and writes them to `benchmarks/results/long_runs.json`. Simulated runs train
until their first histograms. That view is then written many times with other numbers, so that 100,000 steps take minutes.
Nobody knows their end, as in a plain loop. `--steps` writes fewer.
"""

from __future__ import annotations

import argparse
import json
import logging
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch.nn import functional as F

from benchmarks.workloads import WORKLOADS, Batch, mlp
from lightning_hooks import HealthMonitor, StatsMonitor, StepConsumer, StepView, instrument
from lightning_hooks.callbacks._loggers import LoggerWriter
from lightning_hooks.dashboard.api import Api
from lightning_hooks.dashboard.runs import LocalRuns
from lightning_hooks.plan.row_index import RowIndex
from lightning_hooks.records.disk_budget import DISK, DiskBudget
from lightning_hooks.records.limits import CHARTS, MAX_CHARTS, MAX_HISTOGRAMS, Limits
from lightning_hooks.records.saved_index import SavedIndex
from lightning_hooks.rules.prefix import ROOT
from lightning_hooks.rules.schedule import EveryN
from lightning_hooks.stats.accumulators.store import no_numbers
from lightning_hooks.stats.schema import M2, MAX, MEAN, MIN
from lightning_hooks.tensorboard.own_board import OwnBoard
from lightning_hooks.tensorboard.reading import read_run

_RESULTS: Final = Path(__file__).parent / "results" / "long_runs.json"
_EVERY: Final = 50
"""The interval of histograms of a `StatsMonitor`."""
_WIDTH: Final = 1_000
"""The cells of the picture, about one for each pixel."""


class _Last(StepConsumer):
    """Keeps the last view."""

    view: StepView

    def consume(self, view: StepView) -> None:
        self.view = view


def main() -> None:
    """Measure, print and write the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.long_runs", description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000, help="of the simulated runs")
    parser.add_argument("--real", type=int, default=20_000, help="of the real run of a tiny model")
    args = parser.parse_args()
    measures = [*(partial(simulated, name, args.steps) for name in ("A", "D")), partial(real, args.real)]
    rows = []
    for measure in measures:
        rows.append(measure())
        print(json.dumps(rows[-1]), flush=True)
    _RESULTS.write_text(json.dumps({"rows": rows}, indent=1) + "\n", "utf-8")


def simulated(name: str, steps: int) -> dict[str, Any]:
    """The figures of a workload whose steps are written without a training.

    Args:
        name: of the workload.
        steps: that are written.
    """
    workload = WORKLOADS[name]
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        last, model = _Last(), workload.net()
        _train(model, workload.batch, _EVERY, [StatsMonitor(consumers=[last])], Path(folder) / "one")
        board = OwnBoard(Path(folder) / "many", {}, logging.getLogger("benchmarks"))
        begun = time.perf_counter()
        _write(board, last.view, steps)
        taken = time.perf_counter() - begun
        return {"workload": name, "title": workload.title, "is_simulated": True, **_figures(board.folder, steps, taken)}


def real(steps: int) -> dict[str, Any]:
    """The figures of a run of a tiny model with the callbacks of a loop by default, within a tenth of the usual budget."""
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        batch = torch.randn(8, 8), torch.randint(10, (8,))
        begun = time.perf_counter()
        _train(mlp(8), lambda: batch, steps, [StatsMonitor(disk=DISK / 1e7), HealthMonitor()], Path(folder))
        taken = time.perf_counter() - begun
        (run,) = Path(folder).iterdir()
        return {"workload": "tiny", "title": "MLP 10×8", "is_simulated": False, **_figures(run, steps, taken)}


def _train(model: torch.nn.Module, batch: Callable[[], Batch], steps: int, callbacks: list[Any], logdir: Path) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with instrument(model, callbacks, optimizer=optimizer, logdir=logdir):
        for _ in range(steps):
            x, y = batch()
            optimizer.zero_grad()
            F.cross_entropy(model(x), y.flatten()).backward()
            optimizer.step()


def _write(board: OwnBoard, one: StepView, steps: int) -> None:
    """Write a view as many steps, each with other numbers, as a `StatsMonitor` without rules of its own does."""
    writer = LoggerWriter(
        [board], lambda step: True, ROOT, _EVERY, has_layers=lambda logger: False, budget=DiskBudget(say=print)
    )
    writer.limits = Limits({"train": one.rows}, MAX_CHARTS, MAX_HISTOGRAMS, (), CHARTS)
    writer.write_start("", [], 0, indices=[SavedIndex(one.rows, scalars=ROOT).to_json()])
    generator = np.random.default_rng(0)
    nothing = {name: no_numbers(*numbers.shape) for name, numbers in one.kept.items()}
    usual = one.due - {EveryN(_EVERY)}
    for step in range(steps):
        factor = generator.lognormal(sigma=0.1, size=len(one.moments))
        moments = one.moments.copy()
        moments[:, [MEAN, MIN, MAX]] *= factor[:, None]
        moments[:, M2] *= factor**2
        is_drawn = (step + 1) % _EVERY == 0
        kept, due = (one.kept, one.due) if is_drawn else (nothing, usual)
        writer.consume(replace(one, step=step, moments=moments, kept=kept, due=due, facts=None))
    writer.close(None)


def _figures(folder: Path, steps: int, taken: float) -> dict[str, Any]:
    """Bytes, views and the time until the first picture of a run."""
    size = sum(path.stat().st_size for path in folder.iterdir() if "tfevents" in path.name)
    run = read_run(folder)
    table = run.table("grad", "norm")
    lengths = table.steps - table.first_steps + 1
    assert lengths.sum() == steps, "a step is lost"
    rows: RowIndex = run.monitors()[0].rows
    return {
        "steps": steps,
        "rows": len(rows),
        "megabytes": round(size / 1e6, 1),
        "single": int((lengths == 1).sum()),
        "windows": int((lengths > 1).sum()),
        "longest": int(lengths.max()),
        "ms_a_step": round(1e3 * taken / steps, 3),
        "first_picture_s": round(_first_picture(folder, steps), 2),
    }


def _first_picture(folder: Path, steps: int) -> float:
    """The seconds from the start of the page's server to the cells of the norms of all gradients over the whole run."""
    begun = time.perf_counter()
    api = Api(LocalRuns(folder))
    name = json.loads(api("runs", {}).body)["runs"][0]["name"]
    api("run", {"run": name})
    which = {"run": name, "tensor": "grad", "stat": "norm"}
    rows = json.loads(api("rows", which).body)
    level = max(0, int(np.ceil(np.log2(max(steps / rows["unit"] / _WIDTH, 1)))))
    cells = {"unit": rows["unit"], "level": level, "first": 0, "last": -(-steps // (rows["unit"] << level))}
    answer = api(
        "tile", {**which, "key": rows["key"], "nodes": f"0-{len(rows['nodes']) - 1}", **{k: str(v) for k, v in cells.items()}}
    )
    assert answer.status == 200, answer.body
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
