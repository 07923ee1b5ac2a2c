"""A lookout times what passes between steps; the clock is one of the test."""

import pytest
import torch
from torch import nn

from lightning_hooks import assert_no_hooks
from lightning_hooks.engine.lookouts import waiting
from tests.callbacks.models import Net
from tests.engine.lookouts.loops import in_loop, in_trainer

RULES = ["WaitsForData"]


class Clock:
    """Stands still until it is moved."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr(waiting, "perf_counter", lambda: self.now)


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def looped(clock, wait, work):
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def loop(watched, step):
        clock.now += wait(step)
        loss = model(torch.randn(4, 6)).square().mean()
        clock.now += work
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    found = in_loop(model, optimizer, loop, RULES, steps=80)
    assert_no_hooks(model)
    return [(each.severity, each.message) for each in found.values()]


def test_a_loop_that_mostly_waits_is_a_note(clock):
    text = "In each step 90 of the 100 ms pass between the end of a step and the next batch, as the median of 49 steps says."
    assert looped(clock, lambda step: 0.09, 0.01) == [("info", text)]


@pytest.mark.parametrize(
    ("wait", "work"),
    [
        (lambda step: 0.019, 0.001),
        (lambda step: 0.04, 0.06),
        (lambda step: 9.0 if step % 10 == 0 else 0.01, 0.05),
        (lambda step: 1.0 if step < 10 else 0.01, 0.05),
    ],
    ids=["short", "less than half", "a validation now and then", "the first steps"],
)
def test_other_waits_are_silent(clock, wait, work):
    assert looped(clock, wait, work) == []


class Loader:
    """Takes its time for each batch."""

    def __init__(self, clock, wait):
        self.clock, self.wait = clock, wait

    def __len__(self):
        return 70

    def __getitem__(self, index):
        if index >= len(self):
            raise IndexError(index)
        self.clock.now += self.wait
        return torch.randn(4, 6), torch.randn(4, 3)


class Timed(Net):
    def __init__(self, clock):
        super().__init__()
        self.clock = clock

    def training_step(self, batch, batch_idx):
        self.clock.now += 0.02
        return super().training_step(batch, batch_idx)


def test_a_trainer_that_waits_for_its_loader_is_a_note(tmp_path, clock):
    (finding,) = in_trainer(tmp_path, Timed(clock), Loader(clock, 0.06), RULES).values()
    assert finding.severity == "info" and finding.message.startswith("In each step 60 of the 80 ms pass between")
    assert in_trainer(tmp_path, Timed(clock), Loader(clock, 0.01), RULES) == {}
