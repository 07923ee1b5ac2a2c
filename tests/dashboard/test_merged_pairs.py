"""Folded rows of statistics over pairs of gradients show the statistics of one vector, as a group of the run does."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from lightning_hooks import StatsMonitor, Watch
from lightning_hooks.dashboard.local_run import LocalRun
from lightning_hooks.dashboard.merging import merges_exactly
from lightning_hooks.dashboard.tiles import tile
from lightning_hooks.dashboard.tree import tree
from lightning_hooks.stats.pairs import PAIR_STATS
from tests.callbacks.models import Net, data, trainer_of


class Deep(Net):
    def __init__(self) -> None:
        super().__init__(dropout=0.0)
        self.tail = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.tail(self.body(x))
        return y


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> LocalRun:
    folder: Path = tmp_path_factory.mktemp("run")
    monitors = [
        StatsMonitor([Watch(params="*", tensors="grad", stats=["norm", *PAIR_STATS])], logdir=folder),
        StatsMonitor(
            [Watch(params="body.*", tensors="grad", stats=["norm", *PAIR_STATS], group_by={"all": "*"})], prefix="grouped/"
        ),
    ]
    torch.manual_seed(0)
    trainer_of(folder, *monitors, accumulate_grad_batches=3).fit(Deep(), data(18))
    return LocalRun(folder / "run_0")


@pytest.mark.parametrize("stat", PAIR_STATS)
def test_a_folded_part_has_the_statistic_of_its_group(run: LocalRun, stat: str) -> None:
    assert merges_exactly(run, "grad", stat)
    body = next(node for node in tree(run.rows("grad", stat), {}) if node.name == "body")
    assert body.row is None and len(body.leaves) == 4
    found = tile(run, "grad", stat, [body], 1, 0, 6)
    names = run.rows("grouped/grad", stat)
    expected = run.read("grouped/grad", stat, 0, 6)[:, names.index("all")]
    assert np.isfinite(expected[1:]).any()
    np.testing.assert_allclose(found.greatest[0], expected, rtol=1e-5)
    greatest = np.fmax.reduce(run.read("grad", stat, 0, 6)[:, body.leaves], axis=1)
    assert not np.allclose(found.greatest[0], greatest, rtol=1e-3, equal_nan=True)
