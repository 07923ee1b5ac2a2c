"""The default rules watch the layers of the network and every parameter."""

import pytest
import torch
from torch import nn
from torchmetrics import MeanMetric, MeanSquaredError, MetricCollection

from lightning_hooks import StatsMonitor, Watch, instrument, match
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
        f"encoder.{name}" for name in ("self_attn", "linear1", "dropout", "linear2", "norm1", "norm2", "dropout1", "dropout2")
    } | {"inner.linear"}
    params = {row.name for row in plan.rows if row.tensor == "grad"}
    assert params == {name for name, _ in Model().named_parameters()}
    assert "encoder.self_attn.out_proj.weight" in params


def test_a_rule_names_them_all_the_same():
    found = match(Model(), rules=[Watch(modules=["criterion", "elbo", "*.out_proj"])])
    assert found.names == ["encoder.self_attn.out_proj", "criterion", "elbo"]


class Embeddings(nn.Module):
    """Owns a parameter, and has a child."""

    def __init__(self):
        super().__init__()
        self.position = nn.Parameter(torch.zeros(4, 8))
        self.token = nn.Embedding(5, 8)

    def forward(self, x):
        return self.token(x) + self.position


def outputs(net: nn.Module, watch: Watch) -> dict[str, float]:
    """The norms of all outputs in one step."""
    torch.manual_seed(0)
    with instrument(net, [StatsMonitor([watch])]) as watched:
        net(torch.randint(0, 5, (3, 4), generator=torch.Generator().manual_seed(0)))
        watched.step()
    return watched.latest


@pytest.mark.filterwarnings("ignore:matched modules were not called")
def test_a_module_that_owns_parameters_has_a_row_beside_those_of_its_children_whose_numbers_stay():
    net = nn.Sequential(Embeddings(), nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0))
    of_layers = outputs(net, Watch(modules="*", select="layers", tensors="output", stats="norm"))
    of_leaves = outputs(net, Watch(modules="*", select="leaves", tensors="output", stats="norm", strict=False))
    more = {tag: value for tag, value in of_layers.items() if tag not in of_leaves}
    assert {tag for tag in more if tag.startswith("output")} == {"output_norm/0", "output_norm/1.self_attn"}
    uncalled = {"output_norm/1.self_attn.out_proj"}
    assert {tag: of_layers[tag] for tag in of_leaves if tag not in uncalled} == of_leaves
    x = torch.randint(0, 5, (3, 4), generator=torch.Generator().manual_seed(0))
    assert of_layers["output_norm/0"] == pytest.approx(net[0](x).norm().item())


def test_attention_takes_its_fast_path_as_without_a_monitor(monkeypatch):
    calls, native = [], torch._native_multi_head_attention

    def count(*args):
        calls.append(1)
        return native(*args)

    monkeypatch.setattr(torch, "_native_multi_head_attention", count)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x):
            return self.attention(x, x, x, need_weights=False)[0]

    net, x = Net().eval(), torch.randn(2, 3, 8)
    with torch.no_grad():
        alone = net(x)
        rule = Watch(modules="*", select="layers", tensors="output", stats="norm")
        with instrument(net, [StatsMonitor([rule])], calls="all") as watched:
            beside = net(x)
            watched.step()
    assert len(calls) == 2 and torch.equal(alone, beside)
    assert watched.latest["output_norm/attention"] == pytest.approx(alone.norm().item())
