"""The default rules watch the layers of the network and every parameter."""

import torch
from torch import nn
from torchmetrics import MeanMetric, MeanSquaredError, MetricCollection

from lightning_hooks import Watch, match
from lightning_hooks.plan.resolve import resolve
from lightning_hooks.rules.schedule import EveryN


class NTXentLoss(nn.Module):
    """A loss of a user: without parameters, with a module inside."""

    def __init__(self):
        super().__init__()
        self.memory_bank = nn.Identity()

    def forward(self, x):
        return x


class NetWithLoss(nn.Module):
    """A module whose name ends in Loss, but which holds parameters of the network."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 2)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16)
        self.inner = NetWithLoss()
        self.criterion = nn.CrossEntropyLoss(weight=torch.ones(3))
        self.contrastive = NTXentLoss()
        self.metrics = MetricCollection([MeanSquaredError()])
        self.elbo = MeanMetric()


def test_metrics_losses_and_modules_that_torch_never_calls_are_not_watched_by_default():
    plan = resolve(Model(), None, EveryN())
    modules = {row.name for row in plan.rows if row.tensor == "output"}
    assert modules == {
        f"encoder.{name}" for name in ("linear1", "dropout", "linear2", "norm1", "norm2", "dropout1", "dropout2")
    } | {"inner.linear"}
    params = {row.name for row in plan.rows if row.tensor == "grad"}
    assert params == {name for name, _ in Model().named_parameters()}
    assert "encoder.self_attn.out_proj.weight" in params


def test_a_rule_names_them_all_the_same():
    found = match(Model(), [Watch(modules=["criterion", "elbo", "*.out_proj"])])
    assert found.names == ["encoder.self_attn.out_proj", "criterion", "elbo"]
