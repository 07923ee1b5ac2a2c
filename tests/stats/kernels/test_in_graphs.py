"""Operations that measure within compiled code: what the compiler makes of them, and fits. Numbers are in triton_checks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

from lightning_hooks import StatsMonitor, StepConsumer, StepView, Watch
from tests.fake_cuda import code_for_cuda, in_graphs
from tests.stats.kernels import operations_in_host_memory, stand_in

pytest.importorskip("triton")


def test_the_compiler_launches_their_kernels_within_cuda_graphs() -> None:
    from lightning_hooks.stats.kernels import in_graphs as operations

    def compute(x: Tensor, w: Tensor, place: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.relu(x) + 1
        operations.measure(y, place, False)
        operations.measure(torch.sin(y).t(), place, False)
        probe = operations.measure_grad(y * w, place, False)
        return y * w, probe

    code = code_for_cuda(compute, torch.randn(64, 64), torch.randn(64, 64), torch.zeros(2, dtype=torch.int64))
    within = in_graphs(code)
    assert within.count("measure_at_place_0.run(") == 3  # one kernel for all tensors of a dtype
    assert within.count("merge_at_place_") == 3
    assert "torch.ops" not in within and "partition_1" not in code
    # Nothing is copied: neither a place that a kernel changes, nor a transposed tensor. The compiler of torch 2.14 copies both.
    copies = len(re.findall(r"triton_poi_fused\w*\.run\(", within)) - 1
    assert copies == (0 if torch.__version__ < "2.14" else 4) and within.count("float64)") == 1


class Model(LightningModule):
    """A network with an inner gradient in every second step."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net: Any = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))

    def training_step(self, batch: Tensor, number: int) -> Tensor:
        if number % 2:
            inner = self.net(batch.requires_grad_())
            torch.autograd.grad(inner.square().sum(), batch)
        loss: Tensor = self.net(batch).square().mean()
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Checkpointed(Model):
    """A network that is computed again inside its inner gradient."""

    def training_step(self, batch: Tensor, number: int) -> Tensor:
        inner = checkpoint(self.net, batch.requires_grad_(), use_reentrant=False)
        torch.autograd.grad(inner.square().sum(), batch, retain_graph=True)
        loss: Tensor = inner.square().mean()
        return loss


class Keeps(StepConsumer):
    def __init__(self, monitor: StatsMonitor, calls: list[str]) -> None:
        self.monitor, self.calls = monitor, calls
        self.steps: list[tuple[dict[str, float], int]] = []  # the numbers, and the calls of actions until then

    def consume(self, view: StepView) -> None:
        numbers = {tag: value for tag, value in self.monitor.latest.items() if tag != "run/overhead"}
        self.steps.append((numbers, len(self.calls)))


def fit(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    through: bool,
    rules: list[Watch],
    compiles: bool = True,
    kind: type[Model] = Model,
) -> Any:
    from lightning_hooks.hooks import traced
    from lightning_hooks.stats.kernels import in_graphs as operations

    torch._dynamo.reset()
    counters.clear()
    model, monitor = kind(), StatsMonitor(rules)
    calls: list[str] = []
    keeps = Keeps(monitor, calls)
    monitor.consumers.append(keeps)
    with monkeypatch.context() as patch:
        stand_in.install(patch)
        patch.setattr(operations, "is_used", through)
        run = traced.Mark.run

        def noting(self: Any, tensor: Tensor) -> Tensor:
            calls.append(self.name)
            return run(self, tensor)

        patch.setattr(traced.Mark, "run", noting)
        operations_in_host_memory.install(patch)
        if compiles:
            model.net = torch.compile(model.net, backend="aot_eager", fullgraph=True)
        data = [torch.randn(4, 6, generator=torch.Generator().manual_seed(number)) for number in range(6)]
        options: dict[str, Any] = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
        trainer = Trainer(
            max_epochs=1, logger=False, callbacks=[monitor], accelerator="cpu", default_root_dir=tmp_path, **options
        )
        trainer.fit(model, DataLoader(data, batch_size=None))  # type: ignore[arg-type]
    assert not counters["graph_break"]
    return keeps.steps, [parameter.detach() for parameter in model.parameters()], counters["stats"]["unique_graphs"]


@pytest.mark.skipif(stand_in.missing() is not None, reason=str(stand_in.missing()))
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.parametrize("every", [1000, 3])
def test_a_compiled_fit_has_the_numbers_of_hooks_without_calling_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    rules = [
        Watch(modules="net.*", tensors=["input", "output", "input_grad", "output_grad"], stats=["mean", "std", "max"]),
        Watch(modules="net.0", tensors="output", stats="p50", every_n_steps=every),
    ]
    eager, _, _ = fit(tmp_path, monkeypatch, False, rules, compiles=False)
    off, weights, graphs = fit(tmp_path, monkeypatch, False, rules)
    on, same_weights, more_graphs = fit(tmp_path, monkeypatch, True, rules)
    assert all(map(torch.equal, weights, same_weights)) and graphs < more_graphs <= 2 * graphs
    assert len(on) == len(off) == len(eager) == 6
    for (found, _), (other, _), (plain, _) in zip(on, off, eager, strict=True):
        assert found.keys() == other.keys() == plain.keys() and len(found) > 30
        for tag, value in found.items():
            assert value == pytest.approx(other[tag], rel=1e-5, abs=1e-7) == pytest.approx(plain[tag], rel=1e-5, abs=1e-7)
    # Hooks measure in the first step, which notes shapes, and where a histogram is due, which operations do not measure.
    calls = [after - before for (_, before), (_, after) in zip([([], 0), *on], on, strict=False)]
    assert [number for number, many in enumerate(calls) if many] == ([0] if every == 1000 else [0, 2, 5])


@pytest.mark.skipif(stand_in.missing() is not None, reason=str(stand_in.missing()))
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.parametrize(
    "through",
    [False, pytest.param(True, marks=pytest.mark.xfail(strict=True, reason="a replay cannot ask which pass runs"))],
)
def test_what_is_computed_again_inside_an_inner_gradient_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, through: bool
) -> None:
    rules = [Watch(modules="net.*", tensors=["output", "output_grad"], stats=["zero_fraction", "norm"])]
    eager, _, _ = fit(tmp_path, monkeypatch, False, rules, compiles=False, kind=Checkpointed)
    compiled, _, _ = fit(tmp_path, monkeypatch, through, rules, kind=Checkpointed)
    for (found, _), (want, _) in zip(compiled, eager, strict=True):
        assert found == {tag: pytest.approx(value, rel=1e-5, abs=1e-7) for tag, value in want.items()}
