"""What Fabric, accelerate and torch's DDP wrap: the module and the optimizer inside are watched, and no weight changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lightning_hooks import (
    FlightRecorder,
    HealthMonitor,
    StatsMonitor,
    StepConsumer,
    UnsupportedError,
    Watch,
    assert_no_hooks,
    instrument,
    paused,
)

BATCH, MICRO, STEPS = 4, 3, 3
RULES = [
    Watch(modules="*", tensors=["output", "output_grad"], stats="norm"),
    Watch(params="*", tensors=["grad", "final_grad", "update"], stats="norm"),
]


class Views(StepConsumer):
    def __init__(self) -> None:
        self.views: list[Any] = []

    def consume(self, view: Any) -> None:
        self.views.append(view)


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))


def micro_batches() -> torch.Tensor:
    return torch.randn(STEPS, MICRO, BATCH, 4, generator=torch.Generator().manual_seed(1))


def loss_of(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = model(batch).float().square().mean()
    return loss


Loop = Callable[..., Iterator[torch.Tensor]]
"""Set up a network and its optimizer, yield both, then train and yield each loss before its backward."""


def fabric_loop(raw: nn.Module, way: str) -> Iterator[Any]:
    fabric_module = pytest.importorskip("lightning.fabric")
    options: dict[str, Any] = {"accelerator": "cpu", "devices": 1}
    if way == "bf16":
        options["precision"] = "bf16-mixed"
    fabric = fabric_module.Fabric(**options)
    model, optimizer = fabric.setup(raw, torch.optim.Adam(raw.parameters(), lr=0.01))
    yield model, optimizer
    for step in micro_batches():
        for i, batch in enumerate(step):
            is_last = i == MICRO - 1
            with nullcontext() if is_last else fabric.no_backward_sync(model):
                loss = loss_of(model, batch)
                yield loss
                fabric.backward(loss / MICRO)
        if way == "clipping":
            fabric.clip_gradients(model, optimizer, max_norm=0.01)
        optimizer.step()
        optimizer.zero_grad()


def accelerate_loop(raw: nn.Module, way: str) -> Iterator[Any]:
    accelerate = pytest.importorskip("accelerate")
    options: dict[str, Any] = {"mixed_precision": "bf16"} if way == "bf16" else {}
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=MICRO, **options)
    model, optimizer = accelerator.prepare(raw, torch.optim.Adam(raw.parameters(), lr=0.01))
    yield model, optimizer
    for step in micro_batches():
        for batch in step:
            with accelerator.accumulate(model):
                loss = loss_of(model, batch)
                yield loss
                accelerator.backward(loss)
                if way == "clipping" and accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 0.01)
                optimizer.step()
                optimizer.zero_grad()


@pytest.fixture(autouse=True)
def no_state_of_accelerate() -> Iterator[None]:
    yield
    import sys

    if "accelerate" in sys.modules:
        from accelerate.state import AcceleratorState, GradientState

        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()


LOOPS = {"fabric": fabric_loop, "accelerate": accelerate_loop}
CASES = [(name, way) for name in LOOPS for way in ("clipping", "bf16")]


def train(name: str, way: str, *callbacks: Any) -> tuple[nn.Module, Any, list[float]]:
    """Train in a block that is given what the library returns; without callbacks in none."""
    raw, losses = net(), []
    loop = LOOPS[name](raw, way)
    model, optimizer = next(loop)
    with instrument(model, callbacks, optimizer=optimizer) if callbacks else nullcontext() as watched:
        for loss in loop:
            losses.append(loss.item())
            if watched is not None:
                watched.note_loss(loss)
    assert_no_hooks(model)
    return raw, watched, losses


@pytest.mark.parametrize(("name", "way"), CASES)
def test_each_step_of_the_optimizer_inside_is_measured_and_no_weight_changes(name: str, way: str) -> None:
    plain, _, losses = train(name, way)
    views = Views()
    raw, watched, _ = train(name, way, StatsMonitor(RULES, consumers=[views]))
    assert all(map(torch.equal, raw.parameters(), plain.parameters()))
    assert [view.step for view in views.views] == list(range(STEPS))
    parameters, modules = ["0.weight", "0.bias", "2.weight", "2.bias"], ["0", "1", "2"]
    for i, view in enumerate(views.views):
        index = view.rows
        elements = {(index.names[row], index.tensors[row]): int(view.moments[row, 0]) for row in range(len(index.names))}
        assert {n for n, tensor in elements if tensor == "output"} == set(modules)
        assert {n for n, tensor in elements if tensor == "update"} == set(parameters)
        assert elements["0", "output"] == elements["0", "output_grad"] == MICRO * BATCH * 8
        assert view.summaries["run/loss"] == pytest.approx(sum(losses[MICRO * i : MICRO * (i + 1)]) / MICRO, rel=1e-5)
        assert view.facts.optimizers[0].type == "Adam"
    values = watched.latest
    assert values["update_norm/0.weight"] > 0
    norm = values["run/grad_norm"]
    assert norm == values["run/final_grad_norm"] and (norm == pytest.approx(0.01, rel=1e-3)) is (way == "clipping")


@pytest.mark.parametrize("name", LOOPS)
def test_the_update_is_the_change_of_the_weights_of_the_user(name: str) -> None:
    raw = net()
    loop = LOOPS[name](raw, "accumulation")
    model, optimizer = next(loop)
    with instrument(model, [StatsMonitor(RULES)], optimizer=optimizer) as watched:
        assert watched.model is raw and watched.optimizers == [optimizer.optimizer]
        before, changes = [each.detach().clone() for each in raw.parameters()], []
        for i, _ in enumerate(loop):
            if i and i % MICRO == 0:
                now = [each.detach().clone() for each in raw.parameters()]
                changes.append(float(torch.linalg.vector_norm(now[0] - before[0])))
                assert watched.latest["update_norm/0.weight"] == pytest.approx(changes[-1], rel=1e-5)
                before = now
    assert len(changes) == STEPS - 1 and watched.view.step == STEPS - 1


@pytest.mark.parametrize("name", LOOPS)
def test_what_health_rules_and_the_recorder_say_has_the_names_of_the_user(name: str, tmp_path: Path, capsys: Any) -> None:
    loop = LOOPS[name](net(), "accumulation")
    model, optimizer = next(loop)
    del optimizer.param_groups[0]["params"][2:]
    health, recorder = HealthMonitor(["NotInOptimizer"]), FlightRecorder()
    with instrument(model, [health, recorder], optimizer=optimizer, folder=tmp_path) as watched:
        for loss in loop:
            watched.note_loss(loss * float("inf") if watched.next_step == STEPS - 1 else loss)
    assert {finding.rule for finding in health.findings} == {"NotInOptimizer"}
    assert {row for finding in health.findings for row in finding.rows} == {"2.weight", "2.bias"}
    said = capsys.readouterr().err
    assert "ParametersForgotten" in said and "from the output of 2 made it" in " ".join(said.split())


@pytest.mark.parametrize("fabric", [False, True])
def test_ddp_adds_no_name(tmp_path: Path, fabric: bool) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        raw = net()
        model: Any = nn.parallel.DistributedDataParallel(raw)
        optimizer: Any = torch.optim.SGD(raw.parameters(), lr=0.1)
        if fabric:
            wrappers = pytest.importorskip("lightning.fabric.wrappers")
            strategy = pytest.importorskip("lightning.fabric.strategies").SingleDeviceStrategy()
            model, optimizer = wrappers._FabricModule(model, strategy, raw), wrappers._FabricOptimizer(optimizer, strategy)
        with instrument(model, [StatsMonitor(RULES), FlightRecorder()], optimizer=optimizer) as watched:
            loss_of(model, torch.ones(2, 4)).backward()
            with paused(model):
                loss_of(model, torch.ones(2, 4))
            optimizer.step()
        index = watched.view.rows
        assert {name for name in index.names if name} >= {"0", "1", "2", "0.weight"} and watched.model is raw
        assert not [name for name in index.names if "module" in name]
        assert_no_hooks(model)
    finally:
        torch.distributed.destroy_process_group()


class Forwarding:
    """A wrapper as people write them: everything but its own attributes is that of the optimizer inside."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self.optimizer, name)

    def step(self) -> None:
        self.optimizer.step()


class Pretending(Forwarding):
    """The same, which also looks like an optimizer of the class inside, as that of Fabric does."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(optimizer)
        self.__class__ = type("Pretending", (type(self), type(optimizer)), {})


@pytest.mark.parametrize("wrapper", [Forwarding, Pretending])
def test_a_wrapper_whose_hooks_are_those_of_the_optimizer_inside_is_watched(wrapper: Any) -> None:
    raw = net()
    optimizer = wrapper(torch.optim.SGD(raw.parameters(), lr=0.1))
    with instrument(raw, [StatsMonitor(RULES)], optimizer=optimizer) as watched:
        for _ in range(2):
            loss_of(raw, torch.ones(2, 4)).backward()
            optimizer.step()
    assert watched.view.step == 1 and watched.latest["update_norm/0.weight"] > 0


class Averaging(torch.optim.Optimizer):
    """Does more than the optimizer inside, and has no hooks of its own."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self.param_groups = optimizer.param_groups

    def step(self, closure: Any = None) -> None:
        self.optimizer.step()


def test_a_wrapper_without_hooks_that_may_do_more_is_refused_with_the_optimizer_inside_as_advice() -> None:
    raw = net()
    optimizer = Averaging(torch.optim.SGD(raw.parameters(), lr=0.1))
    said = r"instrument: Averaging has no hooks around its step: .*; give its attribute optimizer \(SGD\), if that makes the"
    with pytest.raises(UnsupportedError, match=said), instrument(raw, [StatsMonitor()], optimizer=optimizer):
        pass


def test_an_optimizer_that_is_given_twice_is_one() -> None:
    raw = net()
    optimizer = torch.optim.SGD(raw.parameters(), lr=0.1)
    with instrument(raw, [StatsMonitor(RULES)], optimizer=[optimizer, optimizer]) as watched:
        loss_of(raw, torch.ones(2, 4)).backward()
        optimizer.step()
    assert watched.view.step == 0
