"""`instrument(model, [FlightRecorder()])`: the flight recorder of a plain loop."""

import gc
from weakref import ref

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from lightning_hooks import CustomHooks, FlightRecorder, Hook, StatsMonitor, StepConsumer, instrument
from lightning_hooks.recorder.files import read_record
from lightning_hooks.recorder.record import Verdict


class Views(StepConsumer):
    def __init__(self):
        self.views = []

    def consume(self, view):
        self.views.append(view)


class Root(nn.Module):
    def forward(self, x):
        return (x * (x > 0)).sqrt()


def net(middle=nn.Tanh):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), middle(), nn.Linear(4, 1))


def loop(model, watched, optimizer, steps=4, bad=None):
    for step in range(steps):
        optimizer.zero_grad()
        loss = model(bad(step) if bad else torch.rand(8, 3)).square().mean()
        watched.note_loss(loss)
        loss.backward()
        optimizer.step()


def test_the_backward_of_a_root_of_zero(tmp_path, capsys):
    model = net(Root)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with torch.no_grad():
        model[0].bias[2] = -100.0
    callbacks = [StatsMonitor([{"params": "*", "tensors": "grad"}]), recorder := FlightRecorder()]
    with instrument(model, callbacks, optimizer=optimizer, folder=tmp_path) as watched:
        loop(model, watched, optimizer, steps=1)
    record = recorder.record
    assert record.verdict is Verdict.BACKWARD and record.step == 0
    assert (record.place.module, record.place.type, record.place.direction) == ("1", "Root", "backward")
    assert record.notes[-1] == "The step was not run again: the batch is not known in a loop of your own."
    assert read_record(tmp_path / "flight_record") == record
    said = " ".join(capsys.readouterr().err.split())
    assert "In its backward pass, the gradient of the output of 0 is the first that is not finite." in said
    assert "What reads that output made it: 1, whose gradient was noted just before, or code, such as the forward of" in said
    assert "record.md: the calls before it." in said


class Log(nn.Module):
    def forward(self, x):
        return x.abs().log()


@pytest.mark.parametrize("is_noted", [True, False])
def test_a_bad_forward_is_called_that_whether_or_not_the_loss_is_noted(is_noted):
    model = nn.Sequential(nn.Linear(3, 4, bias=False), Log(), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with instrument(model, [recorder := FlightRecorder()], optimizer=optimizer) as watched:
        for batch in (torch.ones(8, 3), torch.zeros(8, 3)):
            loss = model(batch).square().mean()
            if is_noted:
                watched.note_loss(loss)
            loss.backward()
            optimizer.step()
    record = recorder.record
    assert record.verdict is Verdict.FORWARD and (record.place.module, record.place.direction) == ("1", "forward")
    assert record.message.startswith("In the forward pass of step 1, the output of 1 (Log) is the first that is not finite.")


@pytest.mark.parametrize("is_known", [True, False])
def test_a_loss_that_is_not_known_is_not_called_finite(is_known):
    model = net(Root)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with torch.no_grad():
        model[0].bias[2] = -100.0
    with instrument(model, [recorder := FlightRecorder()], optimizer=optimizer):
        loss = model(torch.rand(8, 3)).square().mean()
        # A backward pass with a gradient of one's own is not that of a loss.
        loss.backward(None if is_known else torch.ones(()))
        optimizer.step()
    record = recorder.record
    begin = "The loss of step 0 is finite." if is_known else "It is not known whether the loss of step 0 is finite."
    assert record.verdict is Verdict.BACKWARD and record.message.startswith(f"{begin} In its backward pass, the gradient of")


def test_a_rate_that_is_infinite(tmp_path):
    model = nn.Linear(3, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    with instrument(model, [recorder := FlightRecorder(5)], optimizer=optimizer, folder=tmp_path) as watched:
        loop(model, watched, optimizer)
        optimizer.param_groups[0]["lr"] = float("inf")
        loop(model, watched, optimizer, steps=1)
        loop(model, watched, optimizer, steps=1)
    record = recorder.record
    assert record.verdict is Verdict.UPDATE and record.step == 4 and record.place.direction == "update"
    assert record.context["optimizers"] == {"0 Adam": [float("inf")]} or record.context["optimizers"] == {"0 Adam": ["inf"]}
    assert record.operation is not None and record.operation.direction == "update"
    assert len(record.trail) == 5


@pytest.mark.parametrize("compiled", [False, True])
def test_the_second_run_of_an_update_calls_no_hook_of_the_optimizer_and_is_no_step(tmp_path, compiled):
    model = nn.Linear(3, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    called = []
    handles = [
        optimizer.register_step_pre_hook(lambda *_: called.append("before")),
        optimizer.register_step_post_hook(lambda *_: called.append("after")),
        register_optimizer_step_pre_hook(lambda *_: called.append("before any")),
        register_optimizer_step_post_hook(lambda *_: called.append("after any")),
    ]
    if compiled:
        torch.compile(model, backend="eager")(torch.ones(1, 3))  # From now on Dynamo wraps the steps of optimizers.
    views = Views()
    hooks = [Hook(lambda *_: called.append("rule"), kind="optimizer_step_post")]
    monitor = StatsMonitor([{"params": "*", "tensors": "update"}], consumers=[views])
    callbacks = [monitor, CustomHooks(hooks), recorder := FlightRecorder()]
    try:
        with instrument(model, callbacks, optimizer=optimizer, folder=tmp_path) as watched:
            loop(model, watched, optimizer, steps=2)
            optimizer.param_groups[0]["lr"] = float("inf")
            loop(model, watched, optimizer, steps=2)
            assert watched.next_step == 4
    finally:
        for handle in handles:
            handle.remove()
    assert [view.step for view in views.views] == [0, 1, 2, 3]
    assert [called.count(name) for name in ("before", "after", "before any", "after any", "rule")] == [4] * 5
    record = recorder.record
    assert record.verdict is Verdict.UPDATE and record.step == 2 and record.operation.direction == "update"
    assert record.reproduced


def test_an_exception_is_recorded(tmp_path, capsys):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def bad(step):
        return torch.rand(8, 3) if step < 2 else torch.rand(8, 7)

    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        with instrument(model, [FlightRecorder()], optimizer=optimizer, folder=tmp_path) as watched:
            loop(model, watched, optimizer, bad=bad)
    record = read_record(tmp_path / "flight_record")
    assert record.verdict is Verdict.EXCEPTION and record.place.module == "0" and record.failure.type == "RuntimeError"
    assert record.step == 2 and record.trail[-1].step == 1
    assert str(tmp_path / "flight_record") in capsys.readouterr().err


OUTSIDE = {
    "forward": "- module: code outside all modules\n- batch 1 of step 2\n",
    "backward": "- module: not known, an exception of the backward pass names none\n- batch 1 of step 2\n",
}


@pytest.mark.parametrize("direction", OUTSIDE)
def test_an_exception_outside_the_model_is_not_said_to_be_of_the_model(tmp_path, direction):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def broken(grad):
        raise KeyError("data")

    with pytest.raises(KeyError):
        with instrument(model, [FlightRecorder()], optimizer=optimizer, folder=tmp_path) as watched:
            loop(model, watched, optimizer, steps=2)
            loss = model(torch.rand(8, 3)).sum()
            if direction == "backward":
                loss.register_hook(broken)
                loss.backward()
            broken(loss)
    record = read_record(tmp_path / "flight_record")
    assert record.verdict is Verdict.EXCEPTION and (record.place.module, record.place.type, record.place.tensor) == ("", "", "")
    assert record.failure.module is None and record.failure.direction == record.place.direction == direction
    assert OUTSIDE[direction] in (tmp_path / "flight_record" / "record.md").read_text()


def test_a_healthy_loop_leaves_nothing(tmp_path):
    model = net()
    plain = net()
    recorder = FlightRecorder()
    for each, callback in ((plain, StatsMonitor()), (model, recorder)):
        optimizer = torch.optim.SGD(each.parameters(), lr=0.1)
        torch.manual_seed(3)
        with instrument(each, [callback], optimizer=optimizer, folder=tmp_path) as watched:
            loop(each, watched, optimizer)
    assert recorder.record is None and not list(tmp_path.iterdir())
    assert all(torch.equal(one, other) for one, other in zip(plain.parameters(), model.parameters(), strict=True))
    alive = ref(model)
    del model, each, optimizer
    gc.collect()
    assert alive() is None and recorder.record is None
