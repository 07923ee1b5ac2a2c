"""Parameters of healthy trainings that no optimizer seems to hold, or that get no gradient."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import BaseFinetuning, ModelPruning
from torch import Tensor, nn
from torch.nn.utils import prune
from torch.utils.data import DataLoader, TensorDataset

from lightning_hooks import HealthMonitor
from tests.callbacks.models import trainer_of
from tests.exam._trainings import Batch, Said, fit, squared_error, train


class Regression(LightningModule):
    """Two layers that learn one of their inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        return nn.functional.mse_loss(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 1e-2)


def regression_data() -> DataLoader[Any]:
    torch.manual_seed(0)
    x = torch.randn(80, 8)
    return DataLoader(TensorDataset(x, 2 * x[:, :1]), 8)


# -- parameters ------------------------------------------------------------------------------------------------------------


class Milestones(BaseFinetuning):
    """Trains the backbone from the third epoch on, without its batch norms: Lightning's default."""

    def freeze_before_training(self, pl_module: Any) -> None:
        self.freeze(modules=pl_module.backbone, train_bn=False)

    def finetune_function(self, pl_module: Any, epoch: int, optimizer: Any) -> None:
        if epoch == 2:
            self.unfreeze_and_add_param_group(modules=pl_module.backbone, optimizer=optimizer, train_bn=False)


class FineTuned(LightningModule):
    """A backbone with a batch norm and a head."""

    def __init__(self) -> None:
        super().__init__()
        pooled = [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        self.backbone = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), *pooled)
        self.head = nn.Linear(8, 2)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        return nn.functional.cross_entropy(self.head(self.backbone(batch[0])), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam([each for each in self.parameters() if each.requires_grad], lr=1e-2)


@pytest.mark.slow
def test_batch_norms_that_a_fine_tuning_leaves_out(tmp_path: Path) -> None:
    """Lightning's `BaseFinetuning(train_bn=False)` unfreezes a backbone without its batch norms, which is its default."""
    torch.manual_seed(0)
    x = torch.randn(256, 1, 8, 8)
    y = (x.mean((1, 2, 3)) > 0).long()
    monitor = HealthMonitor()
    trainer = trainer_of(tmp_path, Milestones(), monitor, max_epochs=5)
    said = fit(trainer, monitor, FineTuned(), DataLoader(TensorDataset(x, y), 32))
    assert said.alarms == []


@pytest.mark.parametrize("lottery", [False, True])
def test_a_pruned_model(tmp_path: Path, lottery: bool) -> None:
    """`ModelPruning` prunes after each epoch, and with `lottery` rewinds the weights. The optimizer holds all of them."""
    monitor = HealthMonitor(every_n_steps=1)
    names = ["weight", "bias"]
    pruning = ModelPruning("l1_unstructured", amount=0.3, use_lottery_ticket_hypothesis=lottery, parameter_names=names)
    said = fit(trainer_of(tmp_path, pruning, monitor, max_epochs=4), monitor, Regression(), regression_data())
    assert said.alarms == []


class PrunesItself(Regression):
    """Prunes its first weight after the first epoch."""

    def on_train_epoch_end(self) -> None:
        if self.current_epoch == 0:
            prune.l1_unstructured(self.net[0], "weight", 0.3)


def test_a_weight_that_is_pruned_by_torch(tmp_path: Path) -> None:
    """After `torch.nn.utils.prune` the optimizer holds the same parameter, which is now called `weight_orig`."""
    monitor = HealthMonitor()
    said = fit(trainer_of(tmp_path, monitor, max_epochs=4), monitor, PrunesItself(), regression_data())
    assert said.alarms == []


# -- outputs that no loss uses ---------------------------------------------------------------------------------------------


class SpareHead(nn.Module):
    """A feature extractor that still computes the head which it had."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head, self.projection = nn.Linear(8, 16), nn.Linear(16, 10), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.body(x))
        self.head(hidden)
        return self.projection(hidden)


class Residual(nn.Module):
    """Three blocks with skip connections to the output, as in WaveNet: nothing reads the last residual branch."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.residual = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
        self.skip = nn.ModuleList(nn.Linear(16, 4) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x, out = self.first(x), torch.zeros(())
        for residual, skip in zip(self.residual, self.skip, strict=True):
            hidden = torch.tanh(x)
            out, x = out + skip(hidden), x + residual(hidden)
        return out


class LastOfBothDirections(nn.Module):
    """A bidirectional LSTM that is read at its last element, where the backward direction has seen one element."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(8, 8, batch_first=True, bidirectional=True), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x[:, None].repeat(1, 5, 1))[0][:, -1])


class Cut(nn.Module):
    """A layer behind which the graph is cut."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.body(x)).detach())


def regress(kind: type[nn.Module], steps: int = 40) -> Said:
    torch.manual_seed(0)
    x = torch.randn(64, 8)
    y = x @ torch.randn(8, 4)
    model = kind()
    return train(model, torch.optim.Adam(model.parameters(), lr=1e-2), [(x, y)] * steps, squared_error)


@pytest.mark.parametrize("kind", [SpareHead, Residual, LastOfBothDirections])
def test_an_output_that_no_loss_uses(kind: type[nn.Module]) -> None:
    """A part of the model is computed and not used by the loss. That is worth a note; nothing is cut."""
    said = regress(kind)
    assert said.losses[-1] < 0.5 * said.losses[0]
    assert said.alarms == [] and said.causes == []


def test_a_graph_that_is_cut_is_told() -> None:
    """A `detach()` behind the first layer keeps gradients from it: that is a cut."""
    said = regress(Cut)
    assert "GradientCut" in said.names
    assert any("NoGradient at 0: body." in alarm for alarm in said.alarms)


def test_one_finding_is_not_called_several() -> None:
    """A cut graph has one finding, so its cause must not say that several findings agree."""
    said = regress(Cut)
    assert all(len(cause.findings) > 1 for cause in said.causes if "several findings" in cause.message)
