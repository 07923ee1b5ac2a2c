"""What a healthy run warns about, and what its last line counts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from lightning.pytorch.demos.boring_classes import BoringModel, RandomDataset
from torch import Tensor, nn
from torch.utils.data import DataLoader

from lightning_hooks import HealthMonitor
from tests.callbacks.models import trainer_of
from tests.exam._trainings import fit, squared_error, train


class OneReLU(nn.Module):
    """One ReLU behind two layers of different widths, as in pytorch/examples super_resolution."""

    def __init__(self) -> None:
        super().__init__()
        self.relu, self.head = nn.ReLU(), nn.Linear(32, 1)
        self.wide, self.narrow = nn.Conv2d(1, 64, 3), nn.Conv2d(64, 32, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.relu(self.narrow(self.relu(self.wide(x)))).mean((2, 3)))


class BothDirections(nn.Module):
    """A bidirectional LSTM of two layers, whose sequence is averaged."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(28, 64, 2, batch_first=True, bidirectional=True), nn.Linear(128, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0].mean(1))


class FusedAttention(nn.Module):
    """A dropout whose probability is given to the attention of torch, as in nanoGPT."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.dropout, self.head = nn.Linear(4, 16), nn.Dropout(0.1), nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)[:, None]
        attended = nn.functional.scaled_dot_product_attention(hidden, hidden, hidden, dropout_p=self.dropout.p)
        return self.head(attended[:, 0])


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        pytest.param(lambda: nn.Linear(4, 1), (8, 4), id="one layer"),
        pytest.param(OneReLU, (8, 1, 8, 8), id="one ReLU"),
        pytest.param(BothDirections, (32, 28, 28), id="bidirectional"),
        pytest.param(FusedAttention, (8, 4), id="attention"),
        pytest.param(lambda: nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)), (8, 4), id="perceptron"),
    ],
)
def test_no_warning_where_nobody_wrote_a_rule(model: type[nn.Module], shape: tuple[int, ...]) -> None:
    """A healthy regression with the default rules: there is nothing to warn about."""
    torch.manual_seed(0)
    net, batch = model(), (torch.randn(shape), torch.randn(shape[0], 1))
    said = train(net, torch.optim.SGD(net.parameters(), lr=0.01), [batch] * 12, squared_error)
    assert said.warnings == []


def test_the_last_line_counts_the_steps_of_the_fit(tmp_path: Path) -> None:
    """A `HealthMonitor` alone measures one step in five; a fit of 120 steps is one of 120 steps."""
    monitor = HealthMonitor()
    trainer = trainer_of(tmp_path, monitor, max_epochs=-1, max_steps=120, limit_val_batches=0)
    said = fit(trainer, monitor, BoringModel(), DataLoader(RandomDataset(32, 64), batch_size=2))
    assert "in 120 steps" in said.told
