"""Lookouts note a rate that falls a thousandfold early in a run, and one that changes from batch to batch of a step."""

import math

import pytest
import torch
from torch import nn

from lightning_hooks import HealthMonitor, StatsMonitor, assert_no_hooks, instrument
from tests.engine.lookouts.loops import in_loop

RULES = ["LearningRateFallen", "ScheduleAdvancesEachBatch"]


def trained(rate_of, batches=1, steps=100, rules=RULES, inner=None, learns=False):
    """What is said of a loop in which `rate_of(step)` sets the rate, or `inner(step, batch)` before each batch."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def loop(watched, step):
        optimizer.param_groups[0]["lr"] = rate_of(step)
        optimizer.zero_grad()
        for batch in range(batches):
            if inner is not None:
                optimizer.param_groups[0]["lr"] = inner(step, batch)
            x = torch.randn(8, 4)
            y = x.sum(1, keepdim=True) if learns else 3 * torch.randn(8, 1).sign()  # a loss with little noise
            loss = nn.functional.mse_loss(model(x), y)
            watched.note_loss(loss)
            loss.backward()
        optimizer.step()

    found = in_loop(model, optimizer, loop, rules, steps)
    assert_no_hooks(model)
    return found


def test_a_rate_that_falls_a_thousandfold_while_the_loss_does_not_is_told():
    finding = trained(lambda step: 0.1 * 0.8**step)["LearningRateFallen"]
    assert (finding.severity, finding.first_step, finding.rows) == ("warning", 43, ("",))
    assert finding.message == (
        "The learning rate of the optimizer has fallen from 0.1 to 6.81e-06, and was above a tenth of its largest in the first "
        "11 of 44 steps that were looked at."
    )


def test_where_the_loss_has_fallen_it_is_a_note():
    assert trained(lambda step: 0.2 * 0.8**step, learns=True)["LearningRateFallen"].severity == "info"


@pytest.mark.parametrize(
    "rate_of",
    [
        lambda step: 0.1,
        lambda step: 0.05 * (1 + math.cos(math.pi * step / 100)),
        lambda step: 0.1 * (1 - step / 100),
        lambda step: 0.1 * 1e-3 ** (step / 100),
        lambda step: min(1.0, 1e-6 * 1.2**step),
        lambda step: 0.1 * (1e-4 if step > 60 else 1.0),
        lambda step: 0.1 * 0.5 ** (step % 15),
    ],
    ids=["constant", "cosine", "linear", "exponential", "warm-up", "fine-tuned at the end", "restarts"],
)
def test_a_rate_that_falls_over_the_training_is_no_finding(rate_of):
    assert trained(rate_of) == {}


def test_each_optimizer_is_looked_at_for_itself():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    optimizers = [torch.optim.SGD(each.parameters(), 0.01) for each in model]

    def loop(watched, step):
        optimizers[1].param_groups[0]["lr"] = 0.01 * 0.5**step
        model(torch.randn(8, 4)).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()

    assert "of optimizer 1 (SGD) has fallen" in in_loop(model, optimizers, loop, RULES, 60)["LearningRateFallen"].message


def test_a_schedule_that_advances_at_each_batch_of_a_step_is_a_note():
    finding = trained(lambda step: 0.1, 4, 20, inner=lambda step, batch: 0.1 * 0.99 ** (4 * step + batch))
    finding = finding["ScheduleAdvancesEachBatch"]
    assert (finding.severity, finding.first_step) == ("info", 3)
    assert finding.message == (
        "The learning rate of the optimizer changes after each of the 4 batches of one step, as from 0.1 to 0.097: a schedule "
        "that was made for steps ends 4 times too early."
    )


@pytest.mark.parametrize(
    ("rate_of", "batches"),
    [(lambda step: 0.1 * 0.99**step, 1), (lambda step: 0.1 * 0.99**step, 4), (lambda step: 0.1, 4)],
    ids=["one batch", "after each step", "constant"],
)
def test_a_schedule_that_advances_after_each_step_is_no_finding(rate_of, batches):
    assert trained(rate_of, batches, 20) == {}


def test_a_schedule_of_batches_that_has_ended_is_one_cause():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with instrument(model, [StatsMonitor(loggers=[]), monitor := HealthMonitor()], optimizer=optimizer) as watched:
        for batch in range(400):
            optimizer.param_groups[0]["lr"] = 0.1 * max(0.0, 1 - batch / 100)
            loss = model(torch.randn(8, 4)).square().mean()
            watched.note_loss(loss)
            (loss / 4).backward()
            if batch % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()
    (cause,) = monitor.causes
    assert cause.name == "ScheduleMismatch"
    assert {"LearningRateZero", "ScheduleAdvancesEachBatch"} <= {each.rule for each in monitor.findings}
    assert "changes after each of the 4 batches of one step" in cause.message
