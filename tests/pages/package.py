"""A small classifier with a fault, for the commands of SKILL.md; it is copied into the folder in which they run."""

from __future__ import annotations

import torch
from lightning.pytorch import LightningDataModule, LightningModule
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Sequential):
    """The network alone."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.add_module("encoder", nn.Sequential(nn.Linear(8, width), nn.ReLU()))
        self.add_module("head", nn.Linear(width, 3))


class Model(LightningModule):
    """The network and its loss.

    Args:
        forgets: whether the optimizer gets the parameters of the head only.
        zero_from: the step from which on the loss takes the logarithm of 0; below 0 for never.
    """

    def __init__(self, forgets: bool = False, zero_from: int = -1) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = Net()
        self.forgets, self.zero_from = forgets, zero_from

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        inputs, labels = batch
        probabilities = self.net(inputs).softmax(dim=1)
        if 0 <= self.zero_from <= self.global_step:
            probabilities = probabilities * (probabilities > 2)
        return nn.functional.nll_loss(probabilities.log(), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        trained = self.net.get_submodule("head") if self.forgets else self.net
        return torch.optim.AdamW(trained.parameters(), lr=1e-2)


class Data(LightningDataModule):
    """Classes that the inputs show."""

    def train_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        inputs = torch.randn(640, 8, generator=torch.Generator().manual_seed(0))
        return DataLoader(TensorDataset(inputs, inputs[:, :3].argmax(1)), batch_size=16, shuffle=True)
