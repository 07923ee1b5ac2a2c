"""A lookout notes gradients of means that several batches add up, where nothing divides them by the number of batches."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_

from lightning_hooks import assert_no_hooks
from tests.callbacks.models import Net
from tests.engine.lookouts.loops import in_loop, in_trainer


class Model(nn.Module):
    """A linear model of random numbers, whose loss is told to the watcher."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 2)

    def forward(self, inputs):
        return self.layer(inputs)

    def loss(self):
        return functional.mse_loss(self(torch.randn(8, 4)), torch.zeros(8, 2))


def said(loop, optimizer=torch.optim.SGD, rate=0.01, rules=("AccumulationNotDivided",), steps=30):
    model = Model()
    made = optimizer(model.parameters(), rate)
    found = in_loop(model, made, lambda watched, step: loop(model, made, Told(watched)), rules, steps)
    assert_no_hooks(model)
    return found


class Told:
    """Begins a backward pass whose loss is told before."""

    def __init__(self, watched):
        self.watched = watched

    def __call__(self, loss):
        self.watched.note_loss(loss)
        loss.backward()


def summed(model, optimizer, backward):
    optimizer.zero_grad()
    for _ in range(6):
        backward(model.loss())
    optimizer.step()


def test_a_sum_of_means_is_a_note_with_the_line_of_the_backward_pass():
    finding = said(summed)["AccumulationNotDivided"]
    assert (finding.rows, finding.first_step, finding.severity) == (("",), 3, "info")
    assert finding.message == (
        "The optimizer steps with the sum of the gradients of 6 backward passes, whose losses are means that nothing divides "
        "by 6: a step is 6 times as long as one with their mean (tests/engine/lookouts/test_accumulation.py:44 in __call__)."
    )


def test_a_sum_with_which_the_loss_diverges_is_a_warning():
    assert said(summed, rate=0.6, steps=60)["AccumulationNotDivided"].severity == "warning"


def divided(model, optimizer, backward):
    optimizer.zero_grad()
    for _ in range(6):
        backward(model.loss() / 6)
    optimizer.step()


def divided_afterwards(model, optimizer, backward):
    optimizer.zero_grad()
    for _ in range(6):
        backward(model.loss())
    for parameter in model.parameters():
        parameter.grad /= 6
    optimizer.step()


def clipped(model, optimizer, backward):
    optimizer.zero_grad()
    for _ in range(6):
        backward(model.loss())
    clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()


def of_sums(model, optimizer, backward):
    optimizer.zero_grad()
    for _ in range(6):
        backward(model(torch.randn(8, 4)).square().sum())
    optimizer.step()


def two_losses(model, optimizer, backward):
    optimizer.zero_grad()
    model.loss().backward()
    functional.mse_loss(model(torch.ones(8, 4)), torch.ones(8, 2)).backward()
    optimizer.step()


def of_one_batch(model, optimizer, backward):
    optimizer.zero_grad()
    backward(model.loss())
    optimizer.step()


def cleared_between(model, optimizer, backward):
    for _ in range(6):
        optimizer.zero_grad()
        backward(model.loss())
    optimizer.step()


@pytest.mark.parametrize("loop", [divided, divided_afterwards, clipped, of_sums, two_losses, of_one_batch, cleared_between])
def test_gradients_that_are_divided_or_no_means_are_not_told(loop):
    assert said(loop) == {}


def test_an_optimizer_that_divides_by_the_size_of_gradients_is_not_told():
    assert said(summed, torch.optim.Adam) == {}


class Summed(Net):
    """Accumulates two batches in manual optimization, without dividing their losses."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        self.manual_backward(super().training_step(batch, batch_idx))
        if batch_idx % 2:
            optimizer.step()
            optimizer.zero_grad()


def test_a_trainer_divides_by_itself_and_not_in_manual_optimization(tmp_path):
    batches = [(torch.randn(4, 6), torch.randn(4, 3)) for _ in range(16)]
    rules = ["AccumulationNotDivided"]
    assert "of 2 backward passes" in in_trainer(tmp_path, Summed(), batches, rules)["AccumulationNotDivided"].message
    assert in_trainer(tmp_path, Net(), batches, rules, accumulate_grad_batches=2) == {}
