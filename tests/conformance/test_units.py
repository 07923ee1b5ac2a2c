"""Statistics of units under torch.compile and under a loss scaler, against float64 computed from the tensors of a bare run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch._dynamo
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.plugins import MixedPrecision
from torch import Tensor, nn
from torch._dynamo.utils import counters

from lightning_hooks import StatsMonitor, Units, Watch, instrument
from lightning_hooks.stats.units.statistics import NAMES
from tests.callbacks.models import trainer_of
from tests.conformance._tools import loader, randn
from tests.conformance._unit_truth import UNIT_STATISTICS, unit_truth
from tests.consumers import Keeps

Kept = dict[tuple[str, str], list[Tensor]]


def test_the_truth_has_every_statistic() -> None:
    assert UNIT_STATISTICS == NAMES


def compare(views: list[Any], steps: list[Kept], axes: dict[str, int], *, rel: float = 1e-6) -> None:
    """Every statistic of units of every row and step is the one of all tensors of the step."""
    assert len(views) == len(steps)
    for step, (view, kept) in enumerate(zip(views, steps, strict=True)):
        for tensor in {tensor for tensor, _ in kept}:
            for stat in NAMES:
                series = view.stat(tensor, stat)
                values = dict(zip(series.names, series.values.tolist(), strict=True))
                assert set(values) == {name for at, name in kept if at == tensor}
                assert series.measured.all(), (step, tensor, stat)
                for name, value in values.items():
                    wanted = unit_truth(kept[tensor, name], axes[name])[stat]
                    assert value == pytest.approx(wanted, rel=rel, nan_ok=True), (step, tensor, name, stat)


# -- torch.compile ---------------------------------------------------------------------------------------------------------

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),
]
AXES = {"conv": 1, "relu": 1, "shared": -1, "head": -1}


class Image(nn.Module):
    """A dead channel behind a rectifier, a layer that is called twice, and a layer of 5 units."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.relu = nn.Conv2d(3, 8, 3), nn.ReLU()
        self.shared, self.head = nn.Linear(8, 8), nn.Linear(8, 5)
        with torch.no_grad():
            self.conv.weight[2], self.conv.bias[2] = 0.0, -1.0

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.relu(self.conv(x)).flatten(2).mean(2)
        y = self.head(self.shared(self.shared(y).tanh()))
        return y


def whole(net: Image, backend: str) -> None:
    net.compile(backend=backend, fullgraph=True)


def regions(net: Image, backend: str) -> None:
    for layer in net.children():
        layer.compile(backend=backend, fullgraph=True)


def image() -> Image:
    torch.manual_seed(0)
    return Image()


def images(step: int) -> list[Tensor]:
    """Two micro-batches."""
    return list(randn(2, 4, 3, 6, 6, seed=step))


def bare(steps: int) -> list[Kept]:
    """The outputs of all modules and their gradients, of a network that is not compiled and not watched."""
    net, found = image(), []
    for step in range(steps):
        kept: Kept = {}

        def keep(name: str, kept: Kept = kept) -> Any:
            def hook(module: nn.Module, args: Any, output: Tensor) -> None:
                kept.setdefault(("output", name), []).append(output.detach().clone())
                output.register_hook(lambda grad: kept.setdefault(("output_grad", name), []).append(grad.clone()))

            return hook

        handles = [child.register_forward_hook(keep(name)) for name, child in net.named_children()]
        for batch in images(step):
            net(batch).square().sum().backward()
        for handle in handles:
            handle.remove()
        found.append(kept)
    return found


@pytest.fixture
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


@pytest.mark.usefixtures("_fresh_compiler")
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("compiles", [whole, regions])
def test_units_of_compiled_modules_are_those_of_eager_mode(compiles: Callable[[Image, str], None], backend: str) -> None:
    net, keeps = image(), Keeps()
    compiles(net, backend)
    rule = Watch(modules="*", tensors=["output", "output_grad"], units=Units(vectors=True), every_n_steps=1)
    steps, graphs = bare(4), []
    with instrument(net, [StatsMonitor([rule], consumers=[keeps])]) as watched:
        for step in range(4):
            for batch in images(step):
                net(batch).square().sum().backward()
            watched.step()
            graphs.append(counters["stats"]["unique_graphs"])
    compare(keeps.views, steps, AXES)
    assert keeps.views[-1].stat("output", "dead_units").values[1] == 0.125
    assert not counters["graph_break"] and len(set(graphs)) == 1
    view = keeps.views[-1]
    for (row, what), values in view.vectors.items():
        tensor, name = view.rows.tensors[row], view.rows.names[row]
        x = torch.cat([t.movedim(AXES[name], -1).flatten(0, -2) for t in steps[-1][tensor, name]]).double()
        wanted = {
            "abs_max": x.abs().amax(0),
            "rms": x.square().mean(0).sqrt(),
            "mean": x.mean(0),
            "zero_fraction": (x == 0).double().mean(0),
        }[what]
        np.testing.assert_allclose(values, wanted, rtol=1e-6, atol=1e-9)


@pytest.mark.usefixtures("_fresh_compiler")
def test_units_at_every_third_step_compile_one_more_variant_at_most() -> None:
    net, keeps, graphs = image(), Keeps(), []
    whole(net, "aot_eager")
    rules = [
        Watch(modules="*", tensors="output", stats=["mean"], every_n_steps=1),
        Watch(modules="*", tensors="output", units="auto", every_n_steps=3),
    ]
    with instrument(net, [StatsMonitor(rules, consumers=[keeps])]) as watched:
        for step in range(9):
            for batch in images(step):
                net(batch).square().sum().backward()
            watched.step()
            graphs.append(counters["stats"]["unique_graphs"])
    measured = [bool(view.stat("output", "dead_units").measured.any()) for view in keeps.views]
    assert measured == [step % 3 == 2 for step in range(9)]
    steps = [{key: kept for key, kept in each.items() if key[0] == "output"} for each in bare(9)]
    compare(keeps.views[2::3], steps[2::3], AXES)
    assert not counters["graph_break"] and graphs[-1] <= 2 * graphs[0]


# -- a loss scaler ---------------------------------------------------------------------------------------------------------


class Half(LightningModule):
    """A layer with a unit whose gradients are below the limit of dead units, unless the loss scale is left in them."""

    def __init__(self, overflows: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.first, self.relu, self.last = nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)
        with torch.no_grad():
            self.last.weight[:, 3] = 1e-6
            self.last.weight[:, 4] = 0.0
        self.overflows = overflows

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        y = self.last(self.relu(self.first(batch)))
        return y.float().square().mean() * (math.inf if batch_idx in self.overflows else 1.0)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Tensors(Callback):
    """Keeps the outputs of modules and their gradients divided by the loss scale, by step."""

    def __init__(self, accumulate: int) -> None:
        self.accumulate, self.steps = accumulate, []

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        scaler = trainer.precision_plugin.scaler  # type: ignore[attr-defined]

        def keep(name: str) -> Any:
            def hook(module: nn.Module, args: Any, output: Tensor) -> None:
                kept = self.steps[-1]
                kept.setdefault(("output", name), []).append(output.detach().clone())

                def take(grad: Tensor) -> None:
                    kept.setdefault(("output_grad", name), []).append(grad.double() / scaler.get_scale())

                output.register_hook(take)

            return hook

        for name, child in pl_module.named_children():
            child.register_forward_hook(keep(name))

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if batch_idx % self.accumulate == 0:
            self.steps.append({})


def scaler(growth_interval: int) -> MixedPrecision:
    grad_scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14, growth_interval=growth_interval)
    return MixedPrecision("16-mixed", "cpu", scaler=grad_scaler)


@pytest.mark.parametrize("overflows", [(), (1, 4)], ids=["finite", "overflows"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_units_of_gradients_are_those_without_the_loss_scale(
    tmp_path: Path, accumulate: int, overflows: tuple[int, ...]
) -> None:
    keeps, tensors = Keeps(), Tensors(accumulate)
    rule = Watch(modules="*", tensors=["output", "output_grad"], units="auto", every_n_steps=1)
    monitor = StatsMonitor([rule], consumers=[keeps])
    data = loader(*randn(8, 4, 6, seed=3))
    for callbacks in ([tensors], [monitor]):
        torch.manual_seed(0)
        model = Half(overflows)
        plugins = scaler(growth_interval=2)
        trainer_of(tmp_path, *callbacks, plugins=plugins, accumulate_grad_batches=accumulate).fit(model, data)
    compare(keeps.views, tensors.steps, {"first": -1, "relu": -1, "last": -1})
    dead = keeps.views[0].stat("output_grad", "dead_units").values[1]
    # With the loss scale, only the unit without weights would be dead, not the one with weights of 1e-6.
    assert dead == 0.25 or 0 in overflows or (accumulate == 2 and 1 in overflows)


class TwoSteps(Half):
    """Steps twice within a batch; the loss scale doubles after each step."""

    automatic_optimization = False

    def training_step(self, batch: Tensor, batch_idx: int) -> None:  # type: ignore[override]
        optimizer: Any = self.optimizers()
        for _ in range(2):
            optimizer.zero_grad()
            self.manual_backward(super().training_step(batch, batch_idx))
            optimizer.step()


def test_units_of_gradients_are_unscaled_if_the_loss_scale_changes_within_a_step(tmp_path: Path) -> None:
    keeps, tensors = Keeps(), Tensors(1)
    rule = Watch(modules="*", tensors="output_grad", units="auto", every_n_steps=1)
    for callback in (tensors, StatsMonitor([rule], consumers=[keeps])):
        torch.manual_seed(0)
        trainer_of(tmp_path, callback, plugins=scaler(growth_interval=1)).fit(TwoSteps(), loader(*randn(4, 4, 6, seed=3)))
    steps = [{key: kept for key, kept in step.items() if key[0] == "output_grad"} for step in tensors.steps]
    assert all(len(kept) == 2 for step in steps for kept in step.values())
    compare(keeps.views, steps, {"first": -1, "relu": -1, "last": -1})
