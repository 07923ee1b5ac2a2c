import torch
from torch import nn

from tests.checks._training import batch, net, result_of

NAME = "GradientsAreRight"


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad


class Wrong(nn.Module):
    def forward(self, x):
        return Doubled.apply(x)


def test_gradients_behind_a_wrong_backward_are_named():
    model = nn.Sequential(nn.Linear(4, 8), Wrong(), nn.ReLU(), nn.Linear(8, 3))
    result = result_of(NAME, model)
    assert result.status == "fail" and set(result.rows) == {"0.weight", "0.bias"}
    assert 0.49 < result.measured < 0.51 and model[0].weight.dtype == torch.float32


def test_right_gradients_pass_with_dropout_and_norms():
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(), nn.Linear(8, 3))
    result = result_of(NAME, model)
    assert (result.status, result.message) == ("pass", "the gradients of 6 parameters are derivatives of the loss")
    assert result.measured < 1e-5


def test_a_gradient_that_a_detach_cuts_is_no_derivative():
    class Cut(nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self.scale = net(), nn.Linear(4, 1)

        def forward(self, x):
            return self.net(x) * self.scale(x).detach()

    assert set(result_of(NAME, Cut()).rows) == {"scale.weight", "scale.bias"}


def test_the_padding_of_an_embedding_has_no_gradient_on_purpose():
    model = nn.Sequential(nn.Embedding(9, 4, padding_idx=0), nn.Flatten(), nn.Linear(8, 3))
    nn.init.ones_(model[0].weight)
    assert result_of(NAME, model, (torch.arange(24).reshape(12, 2) % 9, batch()[1])).status == "pass"
