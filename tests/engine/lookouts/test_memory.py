"""A lookout notes parameters that are not contiguous; an optimizer that writes into a copy of one is told, and no other is."""

import pytest
import torch
from torch import nn

from lightning_hooks import assert_no_hooks
from tests.engine.lookouts.loops import in_loop

RULES = ("CopyUpdated", "UnchangedParameter")


class Descent(torch.optim.SGD):
    """Descends the gradient of what `of` makes of each weight."""

    def __init__(self, parameters, of):
        super().__init__(parameters, lr=0.1)
        self.of = of

    @torch.no_grad()
    def step(self, closure=None):
        for parameter in self.param_groups[0]["params"]:
            if parameter.grad is not None:
                written = self.of(parameter.data)
                written.sub_(parameter.grad.reshape(written.shape), alpha=0.1)


def transposed():
    """A model with a weight that is transposed in memory."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 1))
    model[0].weight = nn.Parameter(torch.randn(6, 6).t())
    return model, torch.randn(8, 6)


def convolution():
    """A model with weights in the format `channels_last`."""
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(4 * 4 * 4, 1)
    model = nn.Sequential(*layers).to(memory_format=torch.channels_last)
    return model, torch.randn(8, 3, 6, 6)


def said(make, of, freeze=None, rules=RULES):
    model, data = make()
    if freeze is not None:
        model.get_parameter(freeze).requires_grad_(False)
    optimizer = Descent(model.parameters(), of)

    def loop(watched, step):
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()

    found = in_loop(model, optimizer, loop, rules)
    assert_no_hooks(model)
    return found


@pytest.mark.parametrize("of", [torch.Tensor.contiguous, torch.Tensor.flatten, lambda weight: weight.reshape(-1)])
@pytest.mark.parametrize("make", [transposed, convolution])
def test_a_copy_that_an_optimizer_writes_into_is_told(make, of):
    finding = said(make, of)["CopyUpdated"]
    assert (finding.rows, finding.severity, finding.first_step) == (("0.weight",), "warning", 1)
    assert finding.message == (
        "0.weight: its optimizer steps, but it stays as it is, bit by bit. It is not contiguous in memory, and those that move "
        "are: the step writes into a copy."
    )


@pytest.mark.parametrize("make", [transposed, convolution])
def test_an_optimizer_that_writes_into_the_parameter_is_no_finding(make):
    assert said(make, lambda weight: weight) == {}


def test_a_frozen_parameter_is_no_finding():
    assert said(transposed, torch.Tensor.contiguous, freeze="0.weight") == {}


def test_a_parameter_that_stands_still_for_another_reason_is_not_told_as_a_copy():
    def of(weight):
        return weight.clone() if weight.dim() == 2 else weight

    assert set(said(transposed, of)) == {"UnchangedParameter"}
