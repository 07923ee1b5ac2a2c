"""A lookout notes calls that clip gradients where they limit no step, with their line and the norm that the step has used."""

import gc
from math import inf

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad, clip_grad_norm_, clip_grad_value_

from lightning_hooks import assert_no_hooks
from lightning_hooks.engine.lookouts.clipping import _places_of
from tests.callbacks.models import Net
from tests.engine.lookouts.loops import in_loop, in_trainer


def trained(loop, rules=("ClippingMisplaced",), steps=15):
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-6)

    def backward(scale=100.0):
        (scale * model(torch.ones(8, 4)).square()).mean().backward()

    before = functions()
    found = in_loop(model, optimizer, lambda watched, step: loop(model, optimizer, backward), rules, steps)
    assert functions() == before
    assert_no_hooks(model)
    return found


def functions():
    names = ("clip_grad_norm_", "clip_grad_value_", "clip_grad_norm")
    inside = [getattr(owner, name) for each in names for owner, name in _places_of(each)]
    return [getattr(owner, name) for owner in (torch.nn.utils, clip_grad) for name in names] + inside


def early(model, optimizer, backward):
    optimizer.zero_grad()
    clip_grad_norm_(model.parameters(), 1.0)
    backward()
    optimizer.step()


def late(model, optimizer, backward):
    optimizer.zero_grad()
    backward()
    optimizer.step()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)


def late_value(model, optimizer, backward):
    backward()
    optimizer.step()
    clip_grad_value_(parameters=model.parameters(), clip_value=0.5)
    optimizer.zero_grad(set_to_none=False)


def test_a_call_before_the_backward_pass_is_named_with_its_line():
    finding = trained(early)["ClippingMisplaced"]
    assert (finding.rows, finding.severity) == (("",), "warning")
    assert finding.first_step == 3
    assert finding.message == (
        "`clip_grad_norm_` runs before the backward pass of the step at 12 of 12 steps, and limits none of them; the norm "
        "that was used was up to 316, at 12 of 12 above the limit of 1 (tests/engine/lookouts/test_clipping.py:40 in early)."
    )


def test_a_call_after_the_step_is_named():
    message = trained(late)["ClippingMisplaced"].message
    assert "`clip_grad_norm_` runs after the step at 11 of 11 steps" in message
    assert "at 11 of 11 above the limit of 1 (tests/engine/lookouts/test_clipping.py:49 in late)." in message


def test_the_function_that_clips_values_is_looked_at_too():
    message = trained(late_value)["ClippingMisplaced"].message
    assert "`clip_grad_value_` runs after the step at 11 of 11 steps" in message
    assert "the largest gradient that was used was up to" in message


def in_order(model, optimizer, backward):
    backward()
    clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


def of_micro_batches(model, optimizer, backward):
    optimizer.zero_grad()
    for _ in range(3):
        backward()
        clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def both_places(model, optimizer, backward):
    in_order(model, optimizer, backward)
    clip_grad_norm_(model.parameters(), 1.0)


def only_measured(model, optimizer, backward):
    backward()
    optimizer.step()
    clip_grad_norm_(model.parameters(), inf)
    optimizer.zero_grad()


def kept_for_the_next(model, optimizer, backward):
    backward()
    optimizer.step()
    clip_grad_norm_(model.parameters(), 1.0)


def by_a_list(model, optimizer, backward):
    backward()
    for parameter in model.parameters():
        clip_grad_norm_([parameter], 1.0)
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize("loop", [in_order, of_micro_batches, both_places, only_measured, kept_for_the_next, by_a_list])
def test_gradients_that_are_clipped_in_time_are_no_finding(loop):
    assert trained(loop) == {}


def test_what_is_clipped_is_the_same_with_and_without_the_lookout():
    def weights(rules):
        torch.manual_seed(0)
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)

        def loop(watched, step):
            model(torch.ones(8, 4)).square().mean().backward()
            total = clip_grad_norm_((each for each in model.parameters()), 0.1)
            norms.append(float(total))
            optimizer.step()
            optimizer.zero_grad()

        norms = []
        in_loop(model, optimizer, loop, rules, 15)
        return norms, model.weight.detach().clone()

    (norms, weight), (others, other) = weights(["ClippingMisplaced"]), weights(["GradientsKept"])
    assert norms == others
    assert torch.equal(weight, other)


def test_the_functions_are_given_back_after_an_error():
    before = functions()
    with pytest.raises(KeyboardInterrupt):
        trained(lambda *args: (_ for _ in ()).throw(KeyboardInterrupt()))
    gc.collect()
    assert functions() == before


class Late(Net):
    """Optimizes manually, and clips after the step."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(super().training_step(batch, batch_idx))
        optimizer.step()
        self.clip_gradients(optimizer, gradient_clip_val=1e-3, gradient_clip_algorithm="norm")


def test_a_trainer_clips_in_order_by_itself_and_not_by_manual_optimization(tmp_path):
    batches = [(torch.randn(4, 6), torch.randn(4, 3)) for _ in range(8)]
    assert "in training_step)" in in_trainer(tmp_path, Late(), batches, ["ClippingMisplaced"])["ClippingMisplaced"].message
    for options in ({}, {"accumulate_grad_batches": 2}, {"gradient_clip_algorithm": "value"}):
        assert in_trainer(tmp_path, Net(), batches, ["ClippingMisplaced"], gradient_clip_val=1e-3, **options) == {}
