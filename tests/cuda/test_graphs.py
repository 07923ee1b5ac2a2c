"""CUDA graphs around watched modules: a captured graph has no measurement in it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from lightning_hooks import StatsMonitor, StepConsumer, StepView, Watch, instrument
from lightning_hooks.callbacks import ActivationCapture
from lightning_hooks.hooks.places import Places
from lightning_hooks.stats.kernels import reference
from lightning_hooks.stats.moments import neutral
from lightning_hooks.stats.schema import COUNT, M2, MAX, MEAN, MIN
from tests.callbacks.models import Net, data, trainer_of

pytestmark = pytest.mark.cuda
RULES = [
    Watch(modules="*", tensors=["output", "output_grad"], stats=["mean", "std", "norm"]),
    Watch(params="*", tensors=["grad", "update"], stats="norm"),
]


@pytest.fixture(autouse=True)
def on_a_device(device: str) -> None:
    if device == "cpu":
        pytest.skip("through a driver in C: tests/stats/kernels/test_device_rows.py")


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).cuda()


def step(model: nn.Module, x: Tensor) -> None:
    model.zero_grad()
    model(x).square().sum().backward()


def test_a_graph_that_is_captured_in_a_watched_step_has_no_measurement(tmp_path: Path) -> None:
    x = torch.randn(4, 6, device="cuda")
    views, gradients = [], []
    for captures in (False, True):
        model, graph, stream = network(), torch.cuda.CUDAGraph(), torch.cuda.Stream()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        capture = ActivationCapture("0", every_n_steps=1, folder=tmp_path / str(captures))
        with instrument(model, [StatsMonitor(RULES), capture], optimizer=optimizer) as watched:
            for number in range(4):
                if captures and number == 2:
                    stream.wait_stream(torch.cuda.current_stream())
                    with (
                        pytest.warns(UserWarning, match="a CUDA graph is"),
                        torch.cuda.graph(graph, stream=stream),
                    ):
                        step(model, x)
                    graph.replay()
                    torch.cuda.current_stream().synchronize()
                step(model, x)
                optimizer.step()
                views.append({tag: value for tag, value in watched.latest.items() if not tag.startswith("run/")})
        graph.replay()  # after the tables are gone
        torch.cuda.synchronize()
        gradients.append([parameter.detach().clone() for parameter in model.parameters()])
    assert views[:4] == views[4:] and "output_norm/0" in views[0]
    assert all(map(torch.equal, *gradients))


def test_a_callable_that_replays_graphs_is_watched_from_outside() -> None:
    x = torch.randn(4, 6, device="cuda")
    views = []
    for graphed in (False, True):
        model = network()
        if graphed:
            model[0] = torch.cuda.make_graphed_callables(model[0], (x.clone().requires_grad_(),))  # type: ignore[assignment]
        with instrument(model, [StatsMonitor(RULES[:1])]) as watched:
            for _ in range(3):
                step(model, x.clone().requires_grad_())
                watched.step()
            views.append(watched.latest)
    for tag, value in views[0].items():
        if not tag.startswith("run/"):
            assert views[1][tag] == pytest.approx(value, rel=1e-5), tag


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_operations_in_compiled_code_measure_in_every_replay() -> None:
    from lightning_hooks.stats.kernels import in_graphs

    def compute(x: Tensor, place: Tensor) -> Tensor:
        y = torch.relu(x) + 1
        in_graphs.measure(y, place, False)
        return torch.sin(y)

    state, places = neutral(2, "cuda"), Places()
    place = places.add(torch.device("cuda"), lambda: None)
    address = state.data_ptr() + 72
    compiled = torch.compile(compute, mode="reduce-overhead", fullgraph=True)
    for number in range(6):
        state.copy_(neutral(2, "cuda"))
        # In one step there is no row: what the step before measured must not be taken for a number of this one.
        places.set((0 if number == 4 else address,))
        place[1] = 0
        inputs = [torch.randn(300, 40, device="cuda") + number for _ in range(2)]
        for x in inputs:
            torch.compiler.cudagraph_mark_step_begin()
            torch.testing.assert_close(compiled(x, place), torch.sin(torch.relu(x) + 1))
        want = reference.measure(torch.cat([torch.relu(x) + 1 for x in inputs]).cpu())
        got = state.cpu()
        assert got[0, COUNT] == 0 and place.tolist() == ([0, 0] if number == 4 else [address, 2])
        if number == 4:
            assert got[1, COUNT] == 0
        else:
            columns = [COUNT, MEAN, M2, MIN, MAX]
            torch.testing.assert_close(got[1, columns], want[columns], rtol=2e-6, atol=1e-6)
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("through", [False, True])
def test_a_compiled_fit_has_the_numbers_of_an_eager_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, through: bool
) -> None:
    from lightning_hooks.stats.kernels import in_graphs

    monkeypatch.setattr(in_graphs, "is_used", through)
    rules = [Watch(modules="*", tensors=["output", "output_grad"], stats=["mean", "std", "norm", "max"])]
    found, weights = [], []
    for compiles in (False, True):
        torch.manual_seed(0)
        model, monitor, views = Net(dropout=0.0), StatsMonitor(rules), Views()
        monitor.consumers.append(views)
        if compiles:
            model.body.compile(mode=mode)
        trainer_of(tmp_path, monitor, accelerator="cuda").fit(model, data(8))
        found.append(views.steps)
        weights.append([parameter.detach().cpu() for parameter in model.parameters()])
    torch._dynamo.reset()
    assert [len(steps) for steps in found] == [len(found[0])] * 2 and len(found[0]) > 2
    for eager, compiled in zip(*found, strict=True):
        torch.testing.assert_close(compiled, eager, rtol=1e-4, atol=1e-5, equal_nan=True)
    for one, other in zip(*weights, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


class Views(StepConsumer):
    """Keeps the numbers of every step."""

    def __init__(self) -> None:
        self.steps: list[Tensor] = []

    def consume(self, view: StepView) -> None:
        columns = [COUNT, MEAN, M2, MIN, MAX]
        self.steps.append(torch.from_numpy(view.moments[:, columns].copy()))
