"""Lookouts on the order of a loop change nothing that they follow, and leave nothing behind, whatever becomes of the run."""

import gc
from weakref import ref

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim import Optimizer

from lightning_hooks import HealthMonitor, StatsMonitor, assert_no_hooks, instrument
from lightning_hooks.engine.lookouts.clipping import _places_of

RULES = ["GradientsKept", "ClearedBeforeStep", "GradientsOfAnotherLoss", "ClippingMisplaced", "AccumulationNotDivided"]


def functions():
    inside = [getattr(*place) for name in ("clip_grad_norm_", "clip_grad_value_") for place in _places_of(name)]
    return [Optimizer.zero_grad, nn.Module.zero_grad, nn.utils.clip_grad_norm_, nn.utils.clip_grad_value_, *inside]


class Pair(nn.Module):
    """Two parts, each with an optimizer."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)), nn.Linear(4, 1)
        self.optimizers = [torch.optim.SGD(self.body.parameters(), 0.1), torch.optim.Adam(self.head.parameters(), 0.1)]

    def step(self):
        body, head = self.optimizers
        body.zero_grad()
        for _ in range(2):
            self.head(self.body(torch.randn(8, 4))).square().mean().backward()
        head.zero_grad(set_to_none=False)
        self.head(torch.ones(8, 4)).square().mean().backward()
        clip_grad_norm_(self.parameters(), 0.5)
        clip_grad_value_(self.head.parameters(), 0.1)
        body.step()
        head.step()


def watched(model, rules):
    return instrument(model, [StatsMonitor(loggers=[]), HealthMonitor(rules=rules)], optimizer=model.optimizers)


@pytest.mark.parametrize("rules", [["LossConstant"], RULES])
def test_weights_and_random_numbers_are_those_of_a_run_that_nobody_watches(rules):
    def end(watches):
        model = Pair()
        if watches:
            with watched(model, rules):
                for _ in range(20):
                    model.step()
        else:
            for _ in range(20):
                model.step()
        assert_no_hooks(model)
        return [*model.parameters(), torch.get_rng_state()]

    assert all(map(torch.equal, end(True), end(False)))


def test_functions_of_torch_are_wrapped_only_while_first_steps_are_looked_at():
    model, before = Pair(), functions()
    with watched(model, RULES):
        assert functions() != before
        for _ in range(13):
            model.step()
        assert functions() == before


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_functions_of_torch_are_given_back_after_an_error(error):
    model, before = Pair(), functions()
    with pytest.raises(error), watched(model, RULES):
        model.step()
        raise error
    assert functions() == before
    assert_no_hooks(model)


def test_a_block_that_is_lost_is_collected_and_gives_back_what_it_wrapped():
    before = functions()

    def lose():
        model = Pair()
        watched(model, RULES).__enter__()
        model.step()
        return ref(model)

    model = lose()
    gc.collect()
    assert model() is None
    assert functions() == before


def test_blocks_inside_each_other_may_end_in_any_order():
    before, blocks = functions(), [watched(Pair(), RULES) for _ in range(2)]
    for block in blocks:
        block.__enter__()
    for block in blocks:
        block.__exit__(None, None, None)
    assert functions() == before
