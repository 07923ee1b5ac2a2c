"""Layers are modules that have no children or own parameters."""

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm
from torchmetrics import MeanSquaredError, MetricCollection

from lightning_hooks.rules.layers import HAS_CHILDREN, why_no_layers
from lightning_hooks.rules.patterns import named_modules


class Embeddings(nn.Module):
    """Owns a parameter, and has a child."""

    def __init__(self):
        super().__init__()
        self.position = nn.Parameter(torch.zeros(4, 8))
        self.token = nn.Embedding(5, 8)

    def forward(self, x):
        return x


class ContrastiveLoss(nn.Module):
    """A loss of a user, with a module inside."""

    def __init__(self):
        super().__init__()
        self.bank = nn.Sequential(nn.Identity())

    def forward(self, x):
        return x


class NetWithLoss(nn.Module):
    """Its name ends in Loss, and it holds the network."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(2, 2)

    def forward(self, x):
        return x


IN_A_LOSS, IN_A_METRIC = "a loss, or a part of one", "a metric, or a part of one"


@pytest.mark.parametrize(
    ("make", "reasons"),
    [
        (lambda: nn.Linear(1, 1), {}),
        (nn.ReLU, {}),
        (Embeddings, {}),
        (lambda: nn.Sequential(nn.Linear(1, 1)), {"": HAS_CHILDREN}),
        (lambda: nn.MultiheadAttention(4, 2), {"out_proj": "torch uses its parameters directly and never calls it"}),
        (
            lambda: weight_norm(nn.Linear(2, 2, bias=False)),
            {"parametrizations.weight": "computes a parameter of the module that holds it"},
        ),
        (nn.CrossEntropyLoss, {"": IN_A_LOSS}),
        (ContrastiveLoss, {"": IN_A_LOSS, "bank": IN_A_LOSS, "bank.0": IN_A_LOSS}),
        (NetWithLoss, {"": HAS_CHILDREN}),
        (lambda: MetricCollection([MeanSquaredError()]), {"": IN_A_METRIC, "MeanSquaredError": IN_A_METRIC}),
    ],
    ids=["leaf", "no parameters", "owner", "container", "attention", "parametrized", "loss", "own loss", "net", "metric"],
)
def test_a_module_is_no_layer_for_one_reason(make, reasons):
    outer = nn.ModuleDict({"part": make()})
    targets = named_modules(outer)
    why = why_no_layers(target.value for target in targets)
    named = {target.name: why[id(target.value)] for target in targets if id(target.value) in why}
    assert {name.removeprefix("part").lstrip("."): reason for name, reason in named.items()} == reasons
    assert [target.name for target in targets.layers()] == [target.name for target in targets if target.name not in named]
