import torch
from torch import nn

from lightning_hooks import check
from tests.checks._training import CROSS_ENTROPY, batch, net, result_of

NAME = "OverfitsBatch"


def with_rate(rate, model=None, **options):
    model = model or net(nn.Dropout(0.9), width=32)
    return result_of(NAME, model, optimizer=torch.optim.Adam(model.parameters(), lr=rate), **options)


def test_a_batch_is_learnt_without_dropout_or_the_check_says_how_far_it_came():
    assert with_rate(0.03).status == "pass"
    result = with_rate(3e-3, fields={"steps": 5})
    assert result.status == "warn" and "in 5 steps" in result.message and 0.5 < result.measured < 1
    assert with_rate(1e4, net()).status == "fail"


def test_it_runs_only_if_it_is_asked_for():
    model = net()
    report = check(model, batch(), loss=CROSS_ENTROPY, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    assert NAME not in [each.check for each in report]


class Roots(nn.Module):
    """Learns a number below 0, whose root `where` hides from the forward pass alone."""

    def __init__(self):
        super().__init__()
        self.net, self.size = net(), nn.Parameter(torch.tensor(0.1))

    def forward(self, x):
        return self.net(x) * (1 + torch.where(self.size > 0, self.size.sqrt(), torch.zeros(())))


def test_a_gradient_that_is_not_finite_after_some_steps_is_named_although_the_loss_is_finite():
    model = Roots()

    def loss(output, target):
        return CROSS_ENTROPY(output, target) + model.size

    result = result_of(NAME, model, loss=loss, optimizer=torch.optim.SGD(model.parameters(), lr=0.05))
    assert (result.status, result.rows) == ("fail", ("size",))
    assert "the gradient holds NaN or infinity after 2 steps on the batch" in result.message
