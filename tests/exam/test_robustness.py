"""Set-ups and files that the package has to bear: it works, or refuses with a sentence."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.fabric import Fabric
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.utils.data import DataLoader

from lightning_hooks import HealthMonitor, StatsMonitor, UnsupportedError, Watch, check, instrument
from tests.callbacks.models import trainer_of
from tests.conformance._tools import run_ranks

# -- checks ----------------------------------------------------------------------------------------------------------------


class GraphNetwork(nn.Module):
    """Two layers, each of which averages over the neighbours: a sparse matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.head = nn.Parameter(torch.randn(8, 16) / 8), nn.Linear(16, 3)

    def forward(self, x: Tensor, neighbours: Tensor) -> Tensor:
        hidden = torch.sparse.mm(x, self.weight) if x.is_sparse else x @ self.weight
        return torch.sparse.mm(neighbours, self.head(torch.relu(torch.sparse.mm(neighbours, hidden))))


@pytest.mark.parametrize("is_sparse", [False, True])
def test_a_check_of_sparse_tensors(is_sparse: bool) -> None:
    """A graph network gets a sparse matrix, and with `is_sparse` sparse features. The step runs, and so does `check`."""
    torch.manual_seed(0)
    dense = (torch.rand(40, 40) < 0.1).float() + torch.eye(40)
    neighbours = (dense / dense.sum(1, keepdim=True)).to_sparse()
    model = GraphNetwork()

    def step(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        x = batch[0].to_sparse() if is_sparse else batch[0]
        return nn.functional.cross_entropy(model(x, neighbours), batch[1])

    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    report = check(model, (torch.randn(40, 8), torch.randint(3, (40,))), step=step, optimizer=optimizer)
    assert report["StepRuns"].status == "pass"


# -- fits ------------------------------------------------------------------------------------------------------------------


@dataclass
class Counter:
    """A counter."""

    n: int = 0


@dataclass(slots=True)
class SlottedCounter:
    """A counter without a dictionary of attributes."""

    n: int = 0


class WarmUp(LightningModule):
    """Counts its steps by an object that it holds, and multiplies the loss by the count."""

    def __init__(self, held: Any) -> None:
        super().__init__()
        self.net, self.held = nn.Linear(4, 1), held

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        if isinstance(self.held, (Counter, SlottedCounter)):
            self.held.n += 1
            count = self.held.n
        else:
            count = next(self.held)
        return self.net(batch).square().mean() * min(count, 20) / 10

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(Counter, id="dataclass"),
        pytest.param(SlottedCounter, id="slots"),
        pytest.param(itertools.count, id="count"),
        pytest.param(lambda: iter(range(1000)), id="iterator"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*restore")
def test_the_check_of_the_first_batch_changes_no_weight(make: Callable[[], Any], tmp_path: Path) -> None:
    """A model counts its steps by an object of its own. The fit is the same with the check of the first batch and without."""
    weights = []
    for callbacks in ([], [HealthMonitor(check_first_batch=True)]):
        torch.manual_seed(0)
        model = WarmUp(make())
        trainer_of(tmp_path, *callbacks).fit(model, DataLoader(torch.ones(40, 4), batch_size=8))
        weights.append(model.net.weight.detach().clone())
    assert torch.equal(*weights)


@pytest.fixture(scope="module")
def vanishing(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What fits did whose folder went, in a process of their own: files and threads that they leave open end with it."""
    cases = ["stats_monitor", "health_monitor"]
    return run_ranks("tests.exam._vanishing_folders", cases, tmp_path_factory.mktemp("vanishing"), world=1)[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        "stats_monitor",
        "health_monitor",
    ],
)
def test_a_folder_that_goes_during_a_fit(vanishing: dict[str, Any], case: str) -> None:
    """Somebody removes the folder of the event file during a fit. One warning says so, and the fit ends as it should."""
    assert vanishing[case] == {"steps": 30, "stopped watching": 1}


# -- other loops -----------------------------------------------------------------------------------------------------------


def _steps(optimizer: Any, model: nn.Module, backward: Callable[[Tensor], Any], watch: Any) -> int:
    """The number of rows that a loop of two steps has."""
    with instrument(model, [StatsMonitor(watch)], optimizer=optimizer) as watched:
        for _ in range(2):
            optimizer.zero_grad()
            backward(model(torch.ones(8, 4)).square().mean())
            optimizer.step()
    return len(watched.latest)


RULES = [
    pytest.param([Watch(modules="*", stats=["norm"])], id="modules"),
    pytest.param([Watch(params="*", tensors=["grad", "update"], stats=["norm"])], id="parameters"),
    pytest.param(None, id="default"),
]


def _net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))


@pytest.mark.parametrize("watch", RULES)
def test_the_optimizer_beside_fabric(watch: Any) -> None:
    """A loop of Fabric works with the model and the optimizer that were given to `setup`."""
    raw = _net()
    optimizer = torch.optim.SGD(raw.parameters(), lr=0.1)
    fabric = Fabric(accelerator="cpu", devices=1)
    fabric.setup(raw, optimizer)
    assert _steps(optimizer, raw, fabric.backward, watch) > 0


@pytest.mark.parametrize("watch", RULES)
def test_the_optimizer_of_fabric(watch: Any) -> None:
    """A loop of Fabric gives `instrument` what `setup` returned, which is the natural thing. It works as with the raw ones."""
    raw = _net()
    fabric = Fabric(accelerator="cpu", devices=1)
    model, optimizer = fabric.setup(raw, torch.optim.SGD(raw.parameters(), lr=0.1))
    assert _steps(optimizer, model, fabric.backward, watch) > 0


# -- ranks -----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two ranks did, by case."""
    cases = ["sharded_alone", "sharded_and_recorded", "unevenly_sharded_and_recorded"]
    return run_ranks("tests.exam._sharded_fits", cases, tmp_path_factory.mktemp("ranks"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        "sharded_alone",
        "sharded_and_recorded",
        "unevenly_sharded_and_recorded",
    ],
)
def test_a_recorder_beside_sharded_parameters(ranks: list[dict[str, Any]], case: str) -> None:
    """A healthy fit with FSDP2 on two ranks ends after its last step, also with a recorder, or is refused at its start."""
    for rank in ranks:
        assert rank[case] == 4 or UnsupportedError.__name__ in str(rank[case]), rank[case]
