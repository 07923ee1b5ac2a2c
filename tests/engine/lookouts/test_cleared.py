"""A lookout notes calls of `zero_grad` between the backward pass and the step, with their line."""

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

from lightning_hooks import assert_no_hooks
from tests.callbacks.models import Net
from tests.engine.lookouts.loops import in_loop, in_trainer


def said(loop, rules=("ClearedBeforeStep",), optimizers=1):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    parts = (model,) if optimizers == 1 else (model[0], model[2])
    made = [torch.optim.SGD(each.parameters(), 0.01) for each in parts]

    def backward():
        model(torch.randn(8, 4)).square().mean().backward()

    before = Optimizer.zero_grad, nn.Module.zero_grad
    found = in_loop(model, made, lambda watched, step: loop(model, *made, backward), rules, 15)
    assert (Optimizer.zero_grad, nn.Module.zero_grad) == before
    assert_no_hooks(model)
    return found


def of_the_optimizer(model, optimizer, backward):
    backward()
    optimizer.zero_grad()
    optimizer.step()


def of_the_model(model, optimizer, backward):
    backward()
    model.zero_grad(set_to_none=False)
    optimizer.step()


@pytest.mark.parametrize(("loop", "line"), [(of_the_optimizer, 31), (of_the_model, 37)])
def test_a_call_before_the_step_is_named_with_its_line(loop, line):
    finding = said(loop)["ClearedBeforeStep"]
    assert (finding.rows, finding.first_step, finding.severity) == (("",), 3, "warning")
    assert finding.message == (
        "`zero_grad()` runs after the backward pass and before the step, so that the optimizer has stepped without gradients "
        f"at 12 of 12 steps (tests/engine/lookouts/test_cleared.py:{line} in {loop.__name__})."
    )


def test_of_two_optimizers_the_one_that_is_cleared_early_is_named():
    def loop(model, body, head, backward):
        body.zero_grad()
        backward()
        body.step()
        head.zero_grad()
        head.step()

    finding = said(loop, optimizers=2)["ClearedBeforeStep"]
    assert finding.rows == ("2.weight",)
    assert "optimizer 1 (SGD) has stepped without gradients" in finding.message


def before(model, optimizer, backward):
    optimizer.zero_grad()
    backward()
    optimizer.step()


def behind(model, optimizer, backward):
    backward()
    optimizer.step()
    model.zero_grad()


def surgery(model, optimizer, backward):
    backward()
    gradients = [each.grad.clone() for each in model.parameters()]
    optimizer.zero_grad()
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        parameter.grad = gradient
    optimizer.step()


def written_to(model, optimizer, backward):
    backward()
    gradients = [each.grad.clone() for each in model.parameters()]
    optimizer.zero_grad(set_to_none=False)
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        parameter.grad.add_(gradient)
    optimizer.step()


def twice(model, optimizer, backward):
    backward()
    optimizer.zero_grad()
    backward()
    optimizer.step()
    optimizer.zero_grad()


def of_a_part(model, optimizer, backward):
    backward()
    model[0].zero_grad()
    optimizer.step()
    optimizer.zero_grad()


def without_backward(model, optimizer, backward):
    model(torch.ones(1, 4))
    optimizer.zero_grad()
    optimizer.step()


@pytest.mark.parametrize("loop", [before, behind, surgery, written_to, twice, of_a_part, without_backward])
def test_calls_at_other_places_are_no_finding(loop):
    assert said(loop) == {}


class Early(Net):
    """Clears its gradients just before the step."""

    def on_before_optimizer_step(self, optimizer):
        optimizer.zero_grad()


def test_a_trainer_is_looked_at_too(tmp_path):
    batches = [(torch.randn(4, 6), torch.randn(4, 3)) for _ in range(8)]
    message = in_trainer(tmp_path, Early(), batches, ["ClearedBeforeStep"])["ClearedBeforeStep"].message
    assert message.endswith("in on_before_optimizer_step).")
    assert in_trainer(tmp_path, Net(), batches, ["ClearedBeforeStep"]) == {}
    assert in_trainer(tmp_path, Net(), batches, ["ClearedBeforeStep"], accumulate_grad_batches=2) == {}
