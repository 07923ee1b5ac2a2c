"""The networks and batches of the set-ups, in float64.

In float32 the kernels of torch differ by 1e-6 between instruction sets, in float64 by 1e-15. Weights and batches come from
NumPy, because torch's random numbers differ in the last bit between instruction sets. A step draws no random number, and none
of its operations amplifies a rounding error.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader

from tests.golden.observing import count_hooks

WIDTH, STEPS = 12, 10
Batch = tuple[Tensor, Tensor]


class Net(nn.Module):
    """Two blocks, a head, the logarithm of an input, a layer with dead units, and a layer that is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(6, WIDTH)
        self.log = Log()
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, 3)
        self.spare = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.stem(x) + 0.1 * self.log(x[:, :1])
        for block in self.blocks:
            y = block(y)
        result: Tensor = self.head(y)
        return result


class Block(nn.Module):
    """A residual block: normalization, a wider layer, its activation, and back."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.act = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU()
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.down(self.act(self.up(self.norm(x))))
        return y


class Log(nn.Module):
    """Gives minus infinity for 0."""

    def forward(self, x: Tensor) -> Tensor:
        return x.abs().log()


def net() -> Net:
    """A network with the same weights at every call."""
    return with_weights(Net().double())


def with_weights(module: nn.Module) -> Any:
    """The module with new weights and biases, except those of its norms."""
    draws = np.random.RandomState(0)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            bound = parameter.shape[-1] ** -0.5
            if "norm" not in name:
                parameter.copy_(torch.from_numpy(draws.uniform(-bound, bound, tuple(parameter.shape))))
        for each in module.modules():
            if isinstance(each, Net):
                each.blocks[0].up.bias[:5] = -50.0
    return module


def batches(count: int = STEPS, first: int = 0, size: int = 8, bad: int | None = None) -> list[Batch]:
    """Batches with a rule that can be learned, each with its own seed.

    Args:
        count: the number of batches.
        first: the seed of the first.
        size: of each.
        bad: the number of the batch of which the logarithm is infinite; none by default.
    """
    rule = torch.linspace(-1.0, 1.0, 18, dtype=torch.float64).reshape(6, 3)
    made = []
    for number in range(count):
        x = torch.from_numpy(np.random.RandomState(100 + first + number).standard_normal((size, 6)))
        if number == bad:
            x[1, 0] = 0.0
        made.append((x, (x @ rule).sin()))
    return made


def loader(made: list[Batch]) -> DataLoader[Any]:
    """A loader that gives these batches in order."""
    return DataLoader(made, batch_size=None)  # type: ignore[arg-type]


class Model(LightningModule):
    """Trains a network with AdamW, which does not hold the parameters of `forgotten`."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net().double()
        self.forgotten = nn.Linear(3, 3, dtype=torch.float64)
        with_weights(self)

    def loss(self, batch: Batch) -> Tensor:
        x, y = batch
        guess: Tensor = self.forgotten(self.net(x))
        return (guess - y).square().mean()

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        loss = self.loss(batch)
        count_hooks(self, f"batch {self.current_epoch}/{batch_idx}")
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        self.log("val_loss", self.loss(batch))
        count_hooks(self, f"validation {self.global_step}/{batch_idx}")

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        self.loss(batch)
        count_hooks(self, f"test {batch_idx}")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.net.parameters(), lr=1e-2)


def trainer(folder: Path, *callbacks: Any, **options: Any) -> Trainer:
    """A Trainer that writes only what its callbacks write, and its own TensorBoard."""
    from lightning.pytorch.loggers import TensorBoardLogger

    options.setdefault("logger", TensorBoardLogger(folder, name="", version=""))
    return Trainer(
        max_epochs=options.pop("max_epochs", 1),
        callbacks=[*callbacks],
        accelerator="cpu",
        precision="64-true",
        log_every_n_steps=2,
        default_root_dir=folder,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )
