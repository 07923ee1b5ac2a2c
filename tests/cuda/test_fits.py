"""Whole fits on a device: numbers of plain hooks in float64, the same bits of weights; steps come late, and none is lost."""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.plugins import MixedPrecision
from torch import Tensor, nn
from torch.utils.data import DataLoader

from lightning_hooks import (
    ActivationCapture,
    Apply,
    GradientTransforms,
    StatsMonitor,
    StepConsumer,
    Watch,
    assert_no_hooks,
    instrument,
    load_capture,
)
from lightning_hooks.transforms import ClipByGlobalNorm
from tests.callbacks.models import Memory, Net, ValNet, adamw, data, plain_sgd, trainer_of
from tests.conformance._tools import everything, same_weights, three_runs
from tests.cuda._strict import Strict, batches_on
from tests.stats.kernels import stand_in

pytestmark = pytest.mark.cuda


class Half(Net):
    """Computes in whatever dtype its weights have."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = (part.to(self.body[0].weight.dtype) for part in batch)
        return nn.functional.mse_loss(self(x), y)


class Overflows(Net):
    """The loss is infinite in one batch."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return super().training_step(batch, batch_idx) * (float("inf") if batch_idx == 1 else 1.0)


def scaler(device: str, **options: Any) -> MixedPrecision:
    return MixedPrecision("16-mixed", device, scaler=torch.amp.GradScaler(device, init_scale=1024.0, **options))


@pytest.mark.parametrize(
    ("precision", "accumulate"),
    [("32-true", 1), ("32-true", 2), ("64-true", 1), ("bf16-true", 1), ("16-true", 2), ("bf16-mixed", 1), ("bf16-mixed", 2)],
)
def test_every_number_in_every_precision(device: str, tmp_path: Path, precision: str, accumulate: int) -> None:
    options = {"precision": precision, "accumulate_grad_batches": accumulate, "accelerator": device}
    three_runs(tmp_path, Half, lambda: data(5), rel=2e-6, **options)


@pytest.mark.parametrize(("make", "accumulate"), [(plain_sgd, 1), (adamw, 2)])
def test_every_number_under_a_scaler(device: str, tmp_path: Path, make: Any, accumulate: int) -> None:
    three_runs(
        tmp_path,
        lambda: Net(make),
        lambda: data(6),
        rel=2e-6,
        plugins=lambda: scaler(device, growth_interval=2),
        accelerator=device,
        accumulate_grad_batches=accumulate,
    )


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_that_the_scaler_skips_has_no_update(device: str, tmp_path: Path, fused: bool) -> None:
    memory = Memory()
    monitor = StatsMonitor([Watch(params="*", tensors=["grad", "update"], stats="norm")])
    model = Overflows(lambda parameters: torch.optim.AdamW(parameters, lr=0.01, fused=fused))
    trainer_of(tmp_path, monitor, logger=memory, accelerator=device, plugins=scaler(device)).fit(model, data(4))
    assert memory.steps_of("update_norm/body.0.weight") == [0, 2, 3]
    assert memory.steps_of("grad_norm/body.0.weight") == [0, 1, 2, 3]
    assert memory.values("run/skipped_steps") == [0, 1, 1, 1]


def test_steps_are_published_one_step_late_in_order_and_before_a_validation(device: str, tmp_path: Path) -> None:
    events: list[tuple[str, int]] = []

    class Consumer(StepConsumer):
        def consume(self, view: Any) -> None:
            events.append(("view", view.step))

    class Batches(Callback):
        def on_train_batch_start(self, trainer: Trainer, module: LightningModule, batch: Any, batch_idx: int) -> None:
            events.append(("batch", batch_idx))

        def on_validation_start(self, trainer: Trainer, module: LightningModule) -> None:
            events.append(("validation", -1))

    monitor = StatsMonitor(everything(), consumers=[Consumer()])
    trainer_of(tmp_path, monitor, Batches(), accelerator=device, val_check_interval=3).fit(ValNet(), data(6), data(1))
    assert [step for kind, step in events if kind == "view"] == list(range(6))
    for step in (0, 1, 3, 4):
        assert events.index(("view", step)) > events.index(("batch", step + 1))
    validation = events.index(("validation", -1))
    assert ("view", 2) in events[:validation] and ("batch", 3) not in events[:validation]


def test_watching_waits_for_nothing_in_a_loop(device: str, without_waiting: Callable[[], AbstractContextManager[None]]) -> None:
    model = nn.Sequential(nn.Linear(6, 50), nn.GELU(), nn.LayerNorm(50), nn.Linear(50, 3)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    x = torch.randn(8, 6, device=device)

    def train() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    train()
    with instrument(model, [StatsMonitor(everything())], optimizer=optimizer) as watched:
        for _ in range(3):
            train()
        with without_waiting():
            for _ in range(3):
                train()
        found = watched.latest
    assert found["output_norm/0"] > 0 and found["update_norm/0.weight"] > 0


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts the launches from Python, by the name of the kernel; stays empty if Triton is not installed."""
    counts: Counter[str] = Counter()
    if importlib.util.find_spec("triton") is None:
        return counts
    from lightning_hooks.stats.kernels import cuda

    launch = cuda._launch

    def counting(kernel: Any, *args: Any, **constants: Any) -> None:
        counts[kernel.fn.__name__] += 1
        launch(kernel, *args, **constants)

    monkeypatch.setattr(cuda, "_launch", counting)
    return counts


def test_all_gradients_are_compared_in_one_launch(
    device: str, without_waiting: Callable[[], AbstractContextManager[None]], launched: Counter[str]
) -> None:
    model = nn.Sequential(nn.Linear(6, 300), nn.GELU(), nn.Linear(300, 3), nn.PReLU(3)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    steps = [torch.randn(8, 6, device=device) for _ in range(5)]
    gradients: list[dict[str, Tensor]] = []

    def train(x: Tensor) -> None:
        optimizer.zero_grad()
        for part in x.chunk(2):  # two micro-batches
            model(part).square().mean().backward()
        found = {name: p.grad.detach().clone() for name, p in model.named_parameters() if p.grad is not None}
        gradients.append(found)
        optimizer.step()

    rule = Watch(params="*", tensors="grad", stats=["cosine", "norm"])
    with instrument(model, [StatsMonitor([rule])], optimizer=optimizer) as watched:
        for x in steps[:3]:
            train(x)
        launched.clear()
        with without_waiting():
            for x in steps[3:]:
                train(x)
        found = watched.latest
    if stand_in.missing() is None:
        assert launched == {"compare_list": 2, "merge_products": 2, "measure_list": 2, "merge_rows": 2}
    for name, now in gradients[-1].items():
        x, y = now.double().flatten(), gradients[-2][name].double().flatten()
        cosine = torch.dot(x, y) / (torch.dot(x, x) * torch.dot(y, y)).sqrt()
        assert found[f"grad_cosine/{name}"] == pytest.approx(cosine.item(), rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("compiled", [False, True])
def test_watching_adds_no_wait_to_a_fit(
    device: str, tmp_path: Path, without_waiting: Callable[[], AbstractContextManager[None]], compiled: bool
) -> None:
    def fit(*callbacks: Callback) -> Net:
        torch.manual_seed(0)
        model = Net(adamw, dropout=0.0).to(device)
        if compiled:
            model.body.compile()
        strict = Strict(device, without_waiting, until=7)
        trainer_of(tmp_path, strict, *callbacks, accelerator=device, logger=Memory() if callbacks else False).fit(
            model, batches_on(device, 9)
        )
        assert_no_hooks(model)
        torch._dynamo.reset()
        return model

    try:
        bare = fit()
    except RuntimeError as error:
        pytest.skip(f"the fit alone waits for the device: {error}")
    watched = fit(StatsMonitor([Watch(modules="*", tensors="output", stats=["mean", "norm"]), *everything()[1:]]))
    if compiled:  # hooks inside keep the compiler from fusing across them
        for one, other in zip(bare.parameters(), watched.parameters(), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    else:
        same_weights(bare, watched)


# The compiler asks every tensor for its gradient, also those that are no leaves; it makes an object of autograd's Function.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_compiled_modules_have_the_numbers_of_eager_ones(device: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 3)).to(device)
    x = torch.randn(4, 6, device=device)
    rules = [Watch(modules="*", tensors=["output", "output_grad"], stats=["mean", "norm", "max", "p50"])]

    def numbers() -> dict[str, float]:
        with instrument(model, [StatsMonitor(rules)]) as watched:
            for _ in range(2):
                model.zero_grad()
                model(x).square().sum().backward()
                watched.step()
            return watched.latest

    eager = numbers()
    model.compile()
    compiled = numbers()
    torch._dynamo.reset()
    assert eager.keys() == compiled.keys() and len(eager) > 20
    for tag, value in eager.items():
        if not tag.startswith("run/"):
            assert compiled[tag] == pytest.approx(value, rel=1e-4, abs=1e-6), tag


def test_captures_hold_what_the_module_returned(device: str, tmp_path: Path) -> None:
    pytest.importorskip("safetensors")

    class Keeps(Callback):
        seen: list[Tensor] = []

        def on_fit_start(self, trainer: Trainer, module: LightningModule) -> None:
            module.body[0].register_forward_hook(lambda m, a, out: self.seen.append(out.detach().cpu().clone()))

    Keeps.seen = []
    capture = ActivationCapture("body.0", every_n_steps=1, folder=tmp_path / "captures")
    model = Net(dropout=0.0)
    model.body[1] = nn.ReLU(inplace=True)  # overwrites what was captured
    trainer_of(tmp_path, capture, Keeps(), accelerator=device, precision="bf16-mixed").fit(model, data(4))
    entries = load_capture(tmp_path / "captures")["body.0"]
    assert len(entries) == len(Keeps.seen) == 4
    for entry, seen in zip(entries, Keeps.seen, strict=True):
        assert torch.equal(entry.to(seen.dtype), seen)


def test_gradient_transforms_beside_a_monitor_do_what_they_do_on_the_cpu(device: str, tmp_path: Path) -> None:
    def fit(where: str) -> tuple[Memory, Net]:
        memory = Memory()
        torch.manual_seed(0)
        model = Net(plain_sgd, dropout=0.0)
        callbacks = StatsMonitor(everything(), max_scalars=1000), GradientTransforms([Apply(ClipByGlobalNorm(0.1), params="*")])
        trainer_of(tmp_path, *callbacks, logger=memory, accelerator=where).fit(model, data(4))
        return memory, model.cpu()

    (there, model), (here, wanted) = fit(device), fit("cpu")
    for one, other in zip(model.parameters(), wanted.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    assert there.steps == here.steps
    for (_, found), (_, expected) in zip(there.ours, here.ours, strict=True):
        assert found.keys() == expected.keys()
        for tag, value in expected.items():
            if tag != "run/overhead":
                assert found[tag] == pytest.approx(value, rel=1e-3, abs=1e-5, nan_ok=True), tag


def test_a_loader_on_the_host_and_a_fit_that_fails_lose_no_step(device: str, tmp_path: Path) -> None:
    class Fails(Net):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            if batch_idx == 4:
                raise RuntimeError("the fifth batch")
            return super().training_step(batch, batch_idx)

    memory, model = Memory(), Fails()
    batches: DataLoader[Any] = data(6)
    with pytest.raises(RuntimeError, match="the fifth batch"):
        monitor = StatsMonitor(everything(), max_scalars=1000)
        trainer_of(tmp_path, monitor, logger=memory, accelerator=device).fit(model, batches)
    assert memory.steps == [0, 1, 2, 3]
    assert_no_hooks(model)
