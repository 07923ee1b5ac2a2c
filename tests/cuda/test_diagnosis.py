"""Health rules, units and the flight recorder on a device: float64 of the tensors, the same bits of weights, and no wait."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn

from lightning_hooks import FlightRecorder, HealthMonitor, StatsMonitor, Watch, assert_no_hooks, instrument
from lightning_hooks.cli.main import main
from lightning_hooks.engine.recording.saving import load_batch
from lightning_hooks.recorder.files import read_record
from lightning_hooks.recorder.record import Gap, Verdict
from lightning_hooks.stats import host_copy
from lightning_hooks.stats.units.statistics import NAMES
from tests import late_copies
from tests.callbacks.models import Net, adamw, data, trainer_of
from tests.callbacks.test_recorder import record_late
from tests.conformance._tools import everything, randn, same_weights
from tests.conformance._unit_truth import unit_truth
from tests.consumers import Keeps
from tests.cuda._strict import Strict, batches_on
from tests.cuda.test_fits import Half, Overflows, scaler

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.filterwarnings("ignore:matched modules were not called"),
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
]
BAD_STEP = 5
MODULE = "tests.cuda.test_diagnosis.Logs"


@pytest.fixture(autouse=True)
def recorders(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU, recorders get their numbers one step late too."""
    if device == "cpu":
        record_late(monkeypatch)


class Image(nn.Module):
    """A dead channel behind a rectifier, and a layer that is called twice."""

    axes = {"conv": 1, "relu": 1, "shared": -1, "head": -1}

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.relu = nn.Conv2d(3, 70, 3), nn.ReLU()
        self.shared, self.head = nn.Linear(70, 70), nn.Linear(70, 5)
        with torch.no_grad():
            self.conv.weight[2], self.conv.bias[2] = 0.0, -1.0  # type: ignore[index]

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.relu(self.conv(x)).flatten(2).mean(2)
        return self.head(self.shared(self.shared(y).tanh()))  # type: ignore[no-any-return]


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_units_of_two_micro_batches_are_those_of_all_their_tensors(device: str, dtype: torch.dtype, compiled: bool) -> None:
    def model() -> Image:
        torch.manual_seed(0)
        return Image().to(device, dtype)

    def train(net: Image, step: int) -> None:
        for batch in randn(2, 4, 3, 6, 6, seed=step).to(device, dtype):
            net(batch).square().sum().backward()

    watched, keeps = model(), Keeps()
    if compiled:
        watched.compile()
    rule = Watch(modules="*", tensors=["output", "output_grad"], units="auto", every_n_steps=1)
    with instrument(watched, [StatsMonitor(rule, consumers=[keeps])]) as session:
        for step in range(2):
            train(watched, step)
            session.step()
        _ = session.latest
    torch._dynamo.reset()

    bare, kept = model(), {}
    for name, child in bare.named_children():
        child.register_forward_hook(lambda module, args, output, name=name: keep(name, output))

    def keep(name: str, output: Tensor) -> None:
        kept.setdefault(("output", name), []).append(output.detach().cpu())
        output.register_hook(lambda grad: kept.setdefault(("output_grad", name), []).append(grad.cpu()))

    assert [view.step for view in keeps.views] == [0, 1]
    # Fused operators round where the single ones do not.
    close = {torch.float64: 1e-6, torch.float32: 1e-4, torch.bfloat16: 0.05}[dtype] if compiled else 1e-6
    for step, view in enumerate(keeps.views):
        kept.clear()
        train(bare, step)
        for (tensor, name), tensors in kept.items():
            wanted = unit_truth(tensors, Image.axes[name])
            for stat in NAMES:
                series = view.stat(tensor, stat)
                value = dict(zip(series.names, series.values.tolist(), strict=True))[name]
                if not (compiled and dtype is not torch.float64 and stat in ("top_unit", "busiest_unit")):
                    assert value == pytest.approx(wanted[stat], rel=close, abs=1e-9, nan_ok=True), (tensor, name, stat)


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (lambda: Net(adamw), {"accumulate_grad_batches": 2}),
        (Half, {"precision": "bf16-true"}),
        (lambda: Net(adamw), {"precision": "bf16-mixed", "gradient_clip_val": 0.1}),
        (Overflows, {"scaler": True}),
    ],
    ids=["accumulation", "bf16-true", "bf16-mixed", "a loss scaler"],
)
@pytest.mark.parametrize("beside", [False, True])
def test_weights_have_the_same_bits(device: str, tmp_path: Path, make: Any, options: dict[str, Any], beside: bool) -> None:
    def weights(*callbacks: Callback) -> LightningModule:
        torch.manual_seed(0)
        model: LightningModule = make()
        torch.manual_seed(1)
        own = {"plugins": scaler(device)} if "scaler" in options else options
        trainer_of(tmp_path, *callbacks, accelerator=device, **own).fit(model, data(48))
        assert_no_hooks(model)
        return model

    monitors: list[Callback] = [StatsMonitor(everything(), loggers=[])] if beside else []
    recorder, health = FlightRecorder(), HealthMonitor()
    same_weights(weights(), weights(*monitors, health, recorder))
    assert recorder.record is None
    expected = {"NonFinite"} if make is Overflows else set()  # of the loss itself, before it is scaled
    assert {finding.rule for finding in health.findings if finding.severity != "info"} == expected


def test_diagnosis_and_recorder_wait_only_for_the_copies_of_the_step_before(
    device: str,
    tmp_path: Path,
    without_waiting: Callable[[], AbstractContextManager[None]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kind: Any = host_copy.PinnedCopy if device == "cuda" else late_copies.LateCopy
    begin, wait = kind.__init__, kind.wait
    batch, waited = [0], []

    def begun(copy: Any, tensor: Any) -> None:
        copy.begun = batch[0]
        begin(copy, tensor)

    def noted(copy: Any) -> Any:
        waited.append(batch[0] - copy.begun)
        return wait(copy)

    monkeypatch.setattr(kind, "__init__", begun)
    monkeypatch.setattr(kind, "wait", noted)

    class Counts(Callback):
        def on_train_batch_start(self, trainer: Trainer, module: LightningModule, x: Any, batch_idx: int) -> None:
            batch[0] = batch_idx

        def on_train_epoch_end(self, trainer: Trainer, module: LightningModule) -> None:
            batch[0] += 1  # The last step is read now.

    def fit(*callbacks: Callback) -> Net:
        torch.manual_seed(0)
        model = Net(adamw, dropout=0.0).to(device)
        strict = Strict(device, without_waiting, until=90)  # Past steps at which the rules look at patterns.
        trainer_of(tmp_path, Counts(), strict, *callbacks, accelerator=device).fit(model, batches_on(device, 92))
        return model

    try:
        bare = fit()
    except RuntimeError as error:
        pytest.skip(f"the fit alone waits for the device: {error}")
    for callbacks in ([], [StatsMonitor(everything(), loggers=[])]):
        waited.clear()
        same_weights(bare, fit(*callbacks, HealthMonitor(), FlightRecorder()))
        assert len(waited) > 100 and {*waited} == {1}


class Forgotten(Net):
    """The optimizer does not hold the last layer, and the first has no living unit."""

    def __init__(self) -> None:
        super().__init__(dropout=0.0)
        nn.init.constant_(self.body[0].bias, -100.0)  # type: ignore[arg-type]

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.body[0].parameters(), lr=0.1)


@pytest.mark.parametrize("beside", [False, True])
def test_what_is_found_on_the_cpu_is_found_on_a_device(device: str, tmp_path: Path, beside: bool) -> None:
    def found(where: str) -> tuple[list[Any], list[str]]:
        torch.manual_seed(0)
        health = HealthMonitor()
        monitors = [StatsMonitor(loggers=[])] if beside else []
        trainer_of(tmp_path, *monitors, health, accelerator=where).fit(Forgotten(), data(90))
        findings = [(finding.rule, finding.rows, finding.first_step) for finding in health.findings]
        return sorted(findings), sorted(cause.name for cause in health.causes)

    there = found(device)
    assert there == found("cpu")
    assert "NotInOptimizer" in {rule for rule, *_ in there[0]} and "ParametersForgotten" in there[1]


class Logs(LightningModule):
    """From `BAD_STEP` on the logarithm of 0 is taken."""

    def __init__(self, raises: bool = False) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.2))
        self.rectify, self.head = nn.ReLU(), nn.Linear(8, 1)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        hidden = self.body(batch[0])
        if batch_idx >= BAD_STEP:
            hidden = self.rectify(hidden - 100).log()
            if self.hparams["raises"]:
                raise ValueError("the sixth batch")
        return self.head(hidden).square().mean()  # type: ignore[no-any-return]

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=1e-2)


@pytest.mark.parametrize("steps", [BAD_STEP + 1, 9], ids=["at the last step", "in the middle"])
@pytest.mark.parametrize("beside", [False, True])
def test_a_record_names_the_step_and_the_layer(device: str, tmp_path: Path, steps: int, beside: bool) -> None:
    torch.manual_seed(0)
    recorder, monitors = FlightRecorder(), [StatsMonitor(loggers=[])] if beside else []
    trainer_of(tmp_path, *monitors, recorder, accelerator=device).fit(Logs(), data(steps))
    record = recorder.record
    assert record is not None and record.verdict is Verdict.FORWARD and record.step == BAD_STEP
    assert record.place is not None and record.place.module == "head" and recorder.folder is not None
    assert record.place.gap == Gap("rectify", "head", ("",))
    outputs = [entry.name for entry in record.trail if entry.tensor == "output"]
    assert outputs == ["body.0", "body.1", "body.2", "rectify", "head"]
    assert record.context["device"].startswith(device) and read_record(recorder.folder) == record
    batch = load_batch(recorder.folder).value
    assert torch.equal(batch[0].cpu(), list(data(steps))[BAD_STEP][0])


def test_an_exception_is_recorded_and_replayed(device: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    recorder = FlightRecorder(weights=True)
    with pytest.raises(ValueError, match="the sixth batch"):
        trainer_of(tmp_path, recorder, accelerator=device).fit(Logs(raises=True), data(9))
    record = recorder.record
    assert record is not None and record.verdict is Verdict.EXCEPTION and record.step == BAD_STEP
    assert record.failure is not None and (record.failure.type, record.failure.message) == ("ValueError", "the sixth batch")
    capsys.readouterr()
    main(["replay", str(recorder.folder), "--module", MODULE])
    text = capsys.readouterr().out
    assert text.startswith("exception: ValueError: the sixth batch\n") and "two runs gave the same" in text
