"""A lookout notes gradients that an optimizer has used and that the next ones are added to; it reads no number."""

import pytest
import torch
from torch import nn

from lightning_hooks import assert_no_hooks
from tests.callbacks.models import Net
from tests.engine.lookouts.loops import in_loop, in_trainer


class Halves(nn.Module):
    """Two layers, each with an optimizer of its own."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 1)
        self.optimizers = [torch.optim.SGD(each.parameters(), 0.01) for each in (self.body, self.head)]

    def loss(self):
        return self.head(self.body(torch.randn(8, 4)).tanh()).square().mean()


def said(clear, rules=("GradientsKept",)):
    model = Halves()

    def loop(watched, step):
        clear(model.optimizers, step)
        model.loss().backward()
        for optimizer in model.optimizers:
            optimizer.step()

    found = in_loop(model, model.optimizers, loop, rules)
    assert_no_hooks(model)
    return found


def test_of_two_optimizers_the_one_that_is_never_cleared_is_named():
    finding = said(lambda optimizers, step: optimizers[0].zero_grad())["GradientsKept"]
    assert (finding.rows, finding.first_step, finding.severity) == (("head.weight",), 4, "warning")
    assert finding.message == (
        "head.weight: gradients that optimizer 1 (SGD) has used are not cleared before the next ones are added to them."
    )


def scale_down(optimizers, step):
    for each in optimizers:
        for parameter in each.param_groups[0]["params"]:
            if parameter.grad is not None:
                parameter.grad.mul_(0.5)


@pytest.mark.parametrize(
    "clear",
    [
        lambda optimizers, step: [each.zero_grad() for each in optimizers],
        lambda optimizers, step: [each.zero_grad(set_to_none=False) for each in optimizers],
        lambda optimizers, step: [each.zero_grad() for each in optimizers] if step != 1 else None,
        scale_down,
    ],
    ids=["to None", "to zero", "all but once", "scaled on purpose"],
)
def test_gradients_that_are_cleared_or_written_to_are_no_finding(clear):
    assert said(clear) == {}


def test_gradients_of_several_batches_may_add_up():
    model = Halves()

    def loop(watched, step):
        for _ in range(3):
            model.loss().backward()
        for optimizer in model.optimizers:
            optimizer.step()
            optimizer.zero_grad()

    assert in_loop(model, model.optimizers, loop, ["GradientsKept"]) == {}


class Manual(Net):
    """Optimizes manually and clears nothing."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        self.manual_backward(super().training_step(batch, batch_idx))
        self.optimizers().step()


def test_a_trainer_with_manual_optimization_is_looked_at_too(tmp_path):
    batches = [(torch.randn(4, 6), torch.randn(4, 3)) for _ in range(8)]
    assert in_trainer(tmp_path, Manual(), batches, ["GradientsKept"])["GradientsKept"].rows == ("",)
    assert in_trainer(tmp_path, Net(), batches, ["GradientsKept"]) == {}
    assert in_trainer(tmp_path, Net(), batches, ["GradientsKept"], accumulate_grad_batches=2) == {}


@pytest.mark.parametrize("to_none", [True, False])
def test_what_another_loss_adds_to_used_gradients_and_is_cleared_before_the_next_step_is_no_finding(to_none):
    model = Halves()
    body, head = model.optimizers

    def loop(watched, step):
        head.zero_grad(set_to_none=to_none)
        model.head(torch.randn(8, 4)).square().mean().backward()
        head.step()
        body.zero_grad()
        model.loss().backward()  # reaches the head too
        body.step()

    assert in_loop(model, model.optimizers, loop, ["GradientsKept"]) == {}
