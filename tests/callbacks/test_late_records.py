"""Where the table's copy is on its way from a device, a step is recorded when the next one ends, and none is lost."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins import MixedPrecision
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from lightning_hooks import StatsMonitor, Watch, instrument
from lightning_hooks.engine.assembly import Contribution, assemble
from lightning_hooks.engine.participants.overhead import Account, Meter
from lightning_hooks.engine.watching.producer import Producer
from lightning_hooks.plan.resolve import resolve
from lightning_hooks.records import StepView
from lightning_hooks.records.consumer import Publisher
from lightning_hooks.rules.schedule import EveryN
from lightning_hooks.stats.kernels import reference
from lightning_hooks.stats.moments import MOMENTS
from tests import late_copies
from tests.callbacks.models import Memory, Net, ValNet, assert_clean, data, everything, trainer_of, watch_fit

OUTPUT = [Watch(modules="body.0", tensors="output", stats=["mean", "max"])]


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return late_copies.install(monkeypatch)


class Steps(Callback):
    """Notes which steps the logger has when each batch ends; before or after the monitor by its place."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.seen: list[list[int]] = []

    def on_train_batch_end(self, *args: Any) -> None:
        self.seen.append(list(self.memory.steps))


class Breaks(Net):
    """Fails in its fourth batch."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        if batch_idx == 3:
            raise ZeroDivisionError("in training")
        return loss


def fit(root: Path, monitor: StatsMonitor, model: Net, *more: Callback, **options: Any) -> Memory:
    memory = Memory()
    trainer = trainer_of(root, monitor, *more, logger=memory, **options)
    trainer.fit(model, data(), *([data(2)] if isinstance(model, ValNet) else []))
    return memory


@pytest.mark.parametrize("options", [{}, {"accumulate_grad_batches": 4}, {"precision": "bf16-mixed"}])
@pytest.mark.parametrize("every", [1, 2])
def test_the_numbers_are_those_of_copies_read_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], every: int
) -> None:
    runs = []
    for late in (False, True):
        if late:
            late_copies.install(monkeypatch)
        torch.manual_seed(0)
        monitor = StatsMonitor(everything(), every_n_steps=every, max_scalars=2000)
        memory, _ = watch_fit(tmp_path, Net(), monitor, **options)
        runs.append([(step, _timeless(numbers)) for step, numbers in [*memory.ours, (-1, monitor.latest)]])
    assert runs[0] == runs[1] and len(runs[0]) > 1


def test_a_step_is_written_when_the_next_one_ends_and_the_last_at_the_end(tmp_path: Path, late: list[str]) -> None:
    memory = Memory()
    steps = Steps(memory)
    trainer_of(tmp_path, StatsMonitor(OUTPUT), steps, logger=memory).fit(Net(), data(4))
    assert steps.seen == [[], [0], [0, 1], [0, 1, 2]]
    assert memory.steps == [0, 1, 2, 3]
    assert late == ["begin", *["begin", "wait"] * 3, "wait"]


def test_the_next_step_need_not_be_watched(tmp_path: Path, late: list[str]) -> None:
    memory = Memory()
    steps = Steps(memory)
    trainer_of(tmp_path, StatsMonitor(OUTPUT, every_n_steps=2), steps, logger=memory).fit(Net(), data(5))
    assert steps.seen == [[], [], [1], [1], [1, 3]]


def test_latest_waits_and_nothing_is_written_twice(tmp_path: Path, late: list[str]) -> None:
    monitor, latest = StatsMonitor(OUTPUT), []

    class Asks(Callback):
        def on_train_batch_end(self, *args: Any) -> None:
            latest.append(monitor.latest)
            assert monitor.latest == latest[-1]

    memory = fit(tmp_path, monitor, Net(), Asks())
    assert memory.steps == list(range(6))
    assert [_timeless(numbers) for numbers in latest] == [_timeless(numbers) for _, numbers in memory.ours]
    assert late == ["begin", "wait"] * 6


def test_the_last_step_before_an_exception_is_written(tmp_path: Path, late: list[str]) -> None:
    model, memory = Breaks(), Memory()
    with pytest.raises(ZeroDivisionError, match="in training"):
        trainer_of(tmp_path, StatsMonitor(OUTPUT), logger=memory).fit(model, data())
    assert memory.steps == [0, 1, 2]
    assert_clean(model)


def test_a_copy_that_fails_does_not_hide_the_exception_of_the_fit(
    tmp_path: Path, late: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(copied: late_copies.LateCopy) -> Tensor:
        raise RuntimeError("the device is gone")

    class BreaksAtOnce(Net):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            if batch_idx == 1:
                monkeypatch.setattr(late_copies.LateCopy, "wait", broken)
                raise ZeroDivisionError("in training")
            return super().training_step(batch, batch_idx)

    model = BreaksAtOnce()
    with (
        pytest.raises(ZeroDivisionError, match="in training"),
        pytest.warns(UserWarning, match="^the last step is not written: RuntimeError: the device is gone$"),
    ):
        trainer_of(tmp_path, StatsMonitor(OUTPUT)).fit(model, data())
    assert_clean(model)


def test_what_was_trained_before_a_validation_is_written_before_it(tmp_path: Path, late: list[str]) -> None:
    monitor = StatsMonitor(OUTPUT, stages=["train", "validate"])
    memory = fit(tmp_path, monitor, ValNet(), val_check_interval=3)
    order = [(step, "val" if "val_output_mean/body.0" in numbers else "train") for step, numbers in memory.ours]
    train = [(step, "train") for step in range(6)]
    assert order == [*train[:3], (2, "val"), *train[3:], (5, "val")]
    assert {"output_mean/body.0", "val_output_mean/body.0"} <= set(monitor.latest)


def test_the_loss_scale_is_that_of_the_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rule = Watch(modules="body.3", tensors="output_grad", stats=["norm", "histogram"])
    runs = []
    for late in (False, True):
        if late:
            late_copies.install(monkeypatch)
        torch.manual_seed(0)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=1)  # another scale in every step
        plugin = MixedPrecision("16-mixed", "cpu", scaler)
        memory, _ = watch_fit(tmp_path, Net(), StatsMonitor([rule]), plugins=plugin)
        runs.append(memory.values("output_grad_norm/body.3"))
    assert runs[0] == runs[1] and len(runs[0]) == 6


def test_averages_in_a_checkpoint_hold_every_step_that_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rule = Watch(params="*", tensors="grad", stats="noise_scale")
    saved = []
    for name in ("at once", "late"):
        if name == "late":
            late_copies.install(monkeypatch)
        torch.manual_seed(0)
        keep = ModelCheckpoint(dirpath=tmp_path / name, every_n_train_steps=1, save_top_k=-1, filename="{step}")
        fit(tmp_path, StatsMonitor([rule]), Net(), keep, accumulate_grad_batches=2, enable_checkpointing=True)
        states = [torch.load(path, weights_only=False) for path in sorted((tmp_path / name).glob("*.ckpt"))]
        saved.append([state["lightning_hooks.StatsMonitor"] for state in states])
    assert repr(saved[0]) == repr(saved[1]) and len(saved[0]) == 3


def test_a_users_metric_is_read_at_once(tmp_path: Path, late: list[str]) -> None:
    rule = Watch(modules="body.0", tensors="output", stats=["mean", "torchmetrics.MeanMetric"])
    memory = Memory()
    steps = Steps(memory)
    trainer_of(tmp_path, StatsMonitor([rule]), steps, logger=memory).fit(Net(), data(3))
    assert steps.seen == [[0], [0, 1], [0, 1, 2]] and late == []
    means, metrics = memory.values("output_mean/body.0"), memory.values("output_MeanMetric/body.0")
    assert metrics == pytest.approx(means, rel=1e-5, abs=1e-7)  # the metric adds up in float32


def test_a_failure_to_write_goes_through_on_error(tmp_path: Path, late: list[str]) -> None:
    class Full(Memory):
        def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
            if "epoch" not in metrics and step == 2:
                raise OSError(28, "No space left on device")
            super().log_metrics(metrics, step)

    model, memory = Net(), Full()
    with pytest.warns(UserWarning, match="stopped watching after OSError: .*No space left on device; training continues"):
        trainer = trainer_of(tmp_path, StatsMonitor(OUTPUT, on_error="warn"), logger=memory)
        trainer.fit(model, data())
    assert trainer.global_step == 6 and memory.steps == [0, 1, 3]  # the table of step 3 was complete when that came out
    assert_clean(model)
    with pytest.raises(OSError, match="No space left"):
        trainer_of(tmp_path, StatsMonitor(OUTPUT), logger=Full()).fit(Net(), data())


def test_a_copy_of_the_callback_has_the_last_step_too(tmp_path: Path, late: list[str]) -> None:
    monitor, found = StatsMonitor(OUTPUT), []

    class Copies(Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            if batch_idx == 2:
                found.extend([pickle.loads(pickle.dumps(monitor)).latest, copy.deepcopy(monitor).latest])

    memory = fit(tmp_path, monitor, Net(), Copies())
    tag = "output_mean/body.0"
    assert [latest[tag] for latest in found] == [memory.values(tag)[2]] * 2


def test_a_plain_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    log = late_copies.install(monkeypatch)
    model = nn.Sequential(nn.Linear(2, 1))
    with instrument(model, [StatsMonitor([Watch(modules="0", tensors="output", stats="mean")])]) as watched:
        for number in range(3):
            model(torch.full((1, 2), float(number))).sum().backward()
            watched.step()
        assert log == ["begin", "begin", "wait", "begin", "wait"]
        assert watched.view.step == 2 and log[-1] == "wait"
        last = watched.latest["output_mean/0"]
        assert last == pytest.approx(model(torch.full((1, 2), 2.0)).item())
    assert watched.latest["output_mean/0"] == last


# -- requests of ranks ----------------------------------------------------------------------------------------------------


class Scripted(Producer):
    """A producer of steps that come late: notes what it does, and in which order."""

    def __init__(self, full: bool = False) -> None:
        self.calls: list[str] = []
        model = nn.Sequential(nn.Linear(2, 2))
        plan = resolve(model, OUTPUT_OF_0, EveryN())
        contribution = Contribution(plans={"train": plan}, publisher=Publisher([self]))  # type: ignore[list-item]
        observer = assemble([contribution]).producers["train"].observer
        observer.account = Account(Meter())
        observer.agree = lambda merged: self.calls.append("agree")  # type: ignore[method-assign]
        super().__init__(observer)
        self._full = full

    def end(self, step: int, *args: Any) -> None:
        self.calls.append(f"end {step}")
        self.observer.step_key(step, "train")
        super().end(step, dict)

    def consume(self, view: StepView) -> None:
        self.calls.append(f"publish {view.step}")
        if self._full:
            raise OSError(f"no space for {view.step}")


OUTPUT_OF_0 = [Watch(modules="0", tensors="output", stats="mean")]


def test_who_asks_early_gets_the_view_and_the_votes_wait_for_the_end_of_a_step(late: list[str]) -> None:
    steps = Scripted()
    steps.end(0)
    steps.publish_pending()
    steps.publish_pending()
    assert steps.calls == ["end 0", "publish 0"]
    steps.end(1)
    assert steps.calls[2:] == ["end 1", "agree"]
    steps.agree()
    assert steps.calls[4:] == ["agree", "publish 1"] and not steps.is_pending


def test_a_step_that_cannot_be_written_does_not_keep_the_votes_of_the_next_away(late: list[str]) -> None:
    steps = Scripted(full=True)
    steps.end(0)
    for step in (1, 2):
        with pytest.raises(OSError, match=f"no space for {step - 1}"):
            steps.end(step)
    assert [call for call in steps.calls if "publish" not in call] == ["end 0", "end 1", "agree", "end 2", "agree"]


def _timeless(numbers: dict[str, float]) -> dict[str, str]:
    return {tag: repr(value) for tag, value in numbers.items() if tag != "run/overhead"}


# -- waiting ---------------------------------------------------------------------------------------------------------------


class Waits(TorchDispatchMode):
    """Notes every operation that would make the host wait for a device: a number is read, or a shape depends on numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket in (torch.ops.aten._local_scalar_dense, torch.ops.aten.nonzero, torch.ops.aten.equal):
            self.seen.append(str(func.overloadpacket))
        return func(*args, **(kwargs or {}))


def test_steps_read_no_number_of_the_device_before_the_next_one_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    class Kernel:
        @staticmethod
        def measure_many_into(
            out: Tensor, places: list[int], tensors: list[Tensor], before: Any, magnitudes: bool
        ) -> list[int]:
            for place, tensor, less in zip(places, tensors, before or [0.0] * len(tensors), strict=True):
                out[place : place + MOMENTS] = reference.measure(tensor - less)
            return []

    def mine(tensor: Tensor) -> Tensor:
        return tensor.mean()

    late_copies.install(monkeypatch)
    monkeypatch.setattr("lightning_hooks.stats.kernels.on_device", lambda tensor: Kernel)
    monkeypatch.setattr(reference, "has_memory", lambda tensor: False)  # as on a device, no number can be looked at
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rules = [
        Watch(modules="*", tensors=["output", "output_grad"], stats=["mean", "norm", "p50", mine]),
        Watch(params="*", tensors=["param", "grad", "update"], stats=["mean", "norm"]),
    ]
    with instrument(model, [StatsMonitor(rules)], optimizer=optimizer) as watched:
        for _ in range(3):
            with Waits() as waits:
                model(torch.ones(3, 4)).backward(torch.ones(3, 1))  # the kernel below measures no loss
                optimizer.step()
            assert waits.seen == []
        assert len(watched.latest) > 40
    with Waits() as waits:
        torch.ones(1).item()
    assert waits.seen == ["aten._local_scalar_dense"]


def test_an_interrupted_wait_leaves_both_steps_to_who_asks_next(monkeypatch: pytest.MonkeyPatch) -> None:
    late_copies.install(monkeypatch)
    model = nn.Sequential(nn.Linear(2, 2))
    with instrument(model, [StatsMonitor([Watch(modules="0", tensors="output", stats="max")])]) as watched:
        model(torch.ones(1, 2))
        watched.step()
        out = model(torch.full((1, 2), 3.0))
        wait = late_copies.LateCopy.wait

        def interrupted(copy: Any) -> Any:
            monkeypatch.setattr(late_copies.LateCopy, "wait", wait)
            raise KeyboardInterrupt

        monkeypatch.setattr(late_copies.LateCopy, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            watched.step()
        assert watched.latest["output_max/0"] == pytest.approx(out.max().item())
