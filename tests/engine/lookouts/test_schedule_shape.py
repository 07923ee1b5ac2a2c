"""The factor of a schedule is that of its scheduler at each advance, and is computed without advancing it."""

import math
import random

import pytest
import torch
from torch.optim import lr_scheduler

from lightning_hooks.engine.lookouts.schedule_shape import end_of, factor_of, factors, made_for


def optimizer():
    return torch.optim.SGD([torch.zeros(1)], lr=0.1)


SCHEDULERS = {
    "steps": lambda o: lr_scheduler.StepLR(o, 30),
    "milestones": lambda o: lr_scheduler.MultiStepLR(o, [30, 60]),
    "exponent": lambda o: lr_scheduler.ExponentialLR(o, 0.95),
    "constant": lambda o: lr_scheduler.ConstantLR(o, 0.1, 10),
    "linear": lambda o: lr_scheduler.LinearLR(o, 0.01, 1.0, 40),
    "polynomial": lambda o: lr_scheduler.PolynomialLR(o, 70, 2.0),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, 40, eta_min=1e-3),
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda step: 0.5**step),
    "sequence": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.01, 1.0, 40), lr_scheduler.CosineAnnealingLR(o, 100)], [40]
    ),
    "chain": lambda o: lr_scheduler.ChainedScheduler([lr_scheduler.LinearLR(o, 0.01, 1.0, 40), lr_scheduler.StepLR(o, 9, 0.5)]),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_factor_is_the_rate_of_the_scheduler(name):
    scheduler = SCHEDULERS[name](optimizer())
    factor = factor_of(scheduler)
    before = {key: value for key, value in scheduler.state_dict().items() if isinstance(value, int)}
    expected = [factor(step) for step in range(110)]
    assert {key: value for key, value in scheduler.state_dict().items() if isinstance(value, int)} == before
    for value in expected:
        assert scheduler.optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * value, rel=1e-6, abs=1e-12)
        scheduler.optimizer.step()
        scheduler.step()


@pytest.mark.parametrize(
    ("name", "length"), [("cosine", 40), ("polynomial", 70), ("sequence", 140), ("steps", None), ("linear", None)]
)
def test_a_scheduler_says_for_how_many_advances_it_was_made(name, length):
    assert made_for(SCHEDULERS[name](optimizer())) == length


def test_the_end_of_a_function_is_found_between_the_places_that_are_looked_at():
    assert end_of(lambda step: max(0.0, 1 - step / 1234), 100_000) == 1233
    assert end_of(lambda step: 0.5 * (1 + math.cos(math.pi * min(step / 215, 1))), 430) == 211
    assert end_of(lambda step: 1 / math.sqrt(1 + step), 500) is None


def counted(calls=[0]):  # noqa: B006
    def factor(step):
        calls[0] += 1
        return 1.0

    return factor


def test_a_function_that_changes_something_is_not_called():
    assert factor_of(lr_scheduler.LambdaLR(optimizer(), counted())) is None
    rates = iter([1.0] * 9)
    assert factor_of(lr_scheduler.LambdaLR(optimizer(), lambda step: next(rates))) is None


def test_a_function_that_raises_is_known_up_to_there_and_one_that_draws_leaves_the_generators():
    rates = [1.0, 0.5, 0.25]
    assert factors(lambda step: rates[step], 9) == {0: 1.0, 1: 0.5, 2: 0.25}
    before = random.getstate(), torch.get_rng_state()
    factors(lambda step: random.random() + float(torch.rand(())), 9)
    assert random.getstate() == before[0] and torch.equal(torch.get_rng_state(), before[1])
