"""The sound parts that the faulty trainings are made of: data, layers and a plain LightningModule.

Every fault is planted by the file that names it. What is here trains well by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Generator, Tensor, nn
from torch.nn import functional
from torch.optim import SGD, AdamW, Optimizer
from torch.utils.data import DataLoader, TensorDataset

Make = Callable[[Iterable[Any]], Optimizer]
"""Makes the optimizer of parameters or parameter groups."""


def adamw(rate: float = 3e-3, **options: Any) -> Make:
    return partial(AdamW, lr=rate, **options)


def sgd(rate: float = 0.1, **options: Any) -> Make:
    return partial(SGD, lr=rate, **options)


def loader(*tensors: Tensor, seed: int, batch: int = 32, shuffle: bool = True, **options: Any) -> DataLoader:
    return DataLoader(
        TensorDataset(*tensors),
        batch_size=batch,
        shuffle=shuffle,
        drop_last=True,
        generator=Generator().manual_seed(seed),
        **options,
    )


@lru_cache
def _digits() -> tuple[Tensor, Tensor]:
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    return torch.tensor(pixels, dtype=torch.float32), torch.tensor(labels)


def digits() -> tuple[Tensor, Tensor]:
    """Handwritten digits: 1797 × 64 pixels of mean 0 and standard deviation 1, and their labels."""
    pixels, labels = _digits()
    return (pixels - pixels.mean()) / pixels.std(), labels.clone()


def images() -> tuple[Tensor, Tensor]:
    """The digits as images of one channel."""
    pixels, labels = digits()
    return pixels.view(-1, 1, 8, 8), labels


def waves(seed: int, features: int = 8, count: int = 2048) -> tuple[Tensor, Tensor]:
    """A smooth function of a few features, [count, 1], of standard deviation about 1."""
    source = Generator().manual_seed(1000 + seed)
    inputs = torch.randn(count, features, generator=source)
    directions = torch.randn(features, 3, generator=source) / features**0.5
    return inputs, torch.sin(2 * inputs @ directions).sum(1, keepdim=True)


def tokens(seed: int, vocabulary: int = 16, length: int = 24, count: int = 1024) -> tuple[Tensor]:
    """Sequences of a Markov chain in which every token has few likely successors."""
    source = Generator().manual_seed(2000 + seed)
    transition = (3 * torch.randn(vocabulary, vocabulary, generator=source)).softmax(1)
    sequence = [torch.randint(vocabulary, (count,), generator=source)]
    for _ in range(length - 1):
        sequence.append(torch.multinomial(transition[sequence[-1]], 1, generator=source).squeeze(1))
    return (torch.stack(sequence, 1),)


class Learner(LightningModule):
    """A module that learns its batches by the loss of `loss` with one optimizer."""

    def __init__(self, optimizer: Make | None = None) -> None:
        super().__init__()
        self.make_optimizer = optimizer or adamw()

    def loss(self, batch: Any) -> Tensor:
        inputs, labels = batch
        return functional.cross_entropy(self(inputs), labels)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.loss(batch)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        return self.make_optimizer(self.parameters())


def stack(inputs: int, width: int, depth: int, activation: Callable[[], nn.Module] = nn.ReLU) -> nn.Sequential:
    """Linear layers, each with an activation."""
    layers: list[nn.Module] = []
    for index in range(depth):
        layers += [nn.Linear(width if index else inputs, width), activation()]
    return nn.Sequential(*layers)


class Perceptron(Learner):
    """A multilayer perceptron: `encoder.0`, `encoder.2`, … are linear, the modules between them activations."""

    def __init__(
        self,
        optimizer: Make | None = None,
        *,
        inputs: int = 64,
        width: int = 64,
        depth: int = 3,
        outputs: int = 10,
        activation: Callable[[], nn.Module] = nn.ReLU,
    ) -> None:
        super().__init__(optimizer)
        self.encoder = stack(inputs, width, depth, activation)
        self.head = nn.Linear(width, outputs)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.encoder(inputs))


class Regressor(Perceptron):
    """A perceptron that learns numbers by their mean squared error."""

    def __init__(self, optimizer: Make | None = None, **sizes: Any) -> None:
        super().__init__(optimizer, **{"inputs": 8, "outputs": 1, **sizes})

    def loss(self, batch: Any) -> Tensor:
        inputs, targets = batch
        return functional.mse_loss(self(inputs), targets)


class Convnet(Learner):
    """A small convolutional network: `features.0`, `.3`, `.6` are convolutions, `.1`, `.4`, `.7` batch norms."""

    def __init__(self, optimizer: Make | None = None, *, width: int = 16, outputs: int = 10, **norm: Any) -> None:
        super().__init__(optimizer)
        layers: list[nn.Module] = []
        for index in range(3):
            layers += [nn.Conv2d(width if index else 1, width, 3, padding=1), nn.BatchNorm2d(width, **norm), nn.ReLU()]
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(width * 16, outputs)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(functional.avg_pool2d(self.features(inputs), 2).flatten(1))


class Attention(nn.Module):
    """Self-attention whose projections are layers of their own. A mask is true where a token may be attended to."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.project = (nn.Linear(width, width) for _ in range(4))

    def split(self, hidden: Tensor) -> Tensor:
        return hidden.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        query, key, value = self.split(self.query(hidden)), self.split(self.key(hidden)), self.split(self.value(hidden))
        scores = (query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5).masked_fill(~mask, -1e9)
        return self.project((scores.softmax(-1) @ value).transpose(1, 2).flatten(2))


class Block(nn.Module):
    """A transformer block with its norms in front."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width, heads)
        self.norm2, self.mlp = (
            nn.LayerNorm(width),
            nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)),
        )

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        hidden = hidden + self.attention(self.norm1(hidden), mask)
        return hidden + self.mlp(self.norm2(hidden))


class Language(Learner):
    """A small transformer that predicts the next token."""

    def __init__(
        self, optimizer: Make | None = None, *, vocabulary: int = 16, width: int = 32, depth: int = 2, heads: int = 4
    ) -> None:
        super().__init__(optimizer)
        self.embedding, self.position = nn.Embedding(vocabulary, width), nn.Embedding(64, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary)
        for embedding in (self.embedding, self.position):
            nn.init.normal_(embedding.weight, std=0.3)

    def mask(self, length: int) -> Tensor:
        return torch.ones(length, length, dtype=torch.bool).tril()

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.embedding(inputs) + self.position(torch.arange(inputs.shape[1]))
        for block in self.blocks:
            hidden = block(hidden, self.mask(inputs.shape[1]))
        return self.head(self.norm(hidden))

    def loss(self, batch: Any) -> Tensor:
        (sequence,) = batch
        return functional.cross_entropy(self(sequence[:, :-1]).flatten(0, 1), sequence[:, 1:].flatten())
