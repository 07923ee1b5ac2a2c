"""The sound parts that the patterns are made of. Each bug is planted by the file that names it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Generator, Tensor, nn
from torch.nn import functional
from torch.optim import AdamW
from torch.utils.data import DataLoader, StackDataset, TensorDataset

from galleries.checks.case import Fit, Plain

BATCH, FEATURES, CLASSES = 16, 12, 5


def blobs(count: int = BATCH, features: int = FEATURES, classes: int = CLASSES) -> tuple[Tensor, Tensor]:
    """Points around one centre for each class, of about unit variance. Every class occurs."""
    source = Generator().manual_seed(1)
    centres = torch.randn(classes, features, generator=source)
    labels = torch.arange(count) % classes
    return (centres[labels] + torch.randn(count, features, generator=source)) / 2**0.5, labels


def images(count: int = BATCH, channels: int = 1, size: int = 8) -> tuple[Tensor, Tensor]:
    """Noise with a brighter row for each class, of about unit variance."""
    source = Generator().manual_seed(2)
    labels = torch.arange(count) % CLASSES
    pixels = torch.randn(count, channels, size, size, generator=source)
    pixels[torch.arange(count), :, labels] += 2
    return pixels / pixels.std(), labels


def sequences(count: int = BATCH, length: int = 7, features: int = 6) -> tuple[Tensor, Tensor]:
    """Series of vectors, [count, length, features], and a class of each series."""
    source = Generator().manual_seed(3)
    labels = torch.arange(count) % CLASSES
    series = torch.randn(count, length, features, generator=source)
    return series + 0.5 * labels[:, None, None] - 1, labels


def tokens(count: int = BATCH, length: int = 10, vocabulary: int = 16) -> Tensor:
    """Sequences of token ids, 1 to `vocabulary` − 1; 0 is left for padding."""
    return torch.randint(1, vocabulary, (count, length), generator=Generator().manual_seed(4))


def waves(count: int = BATCH, features: int = FEATURES) -> tuple[Tensor, Tensor]:
    """A smooth function of a few features, [count, 1]."""
    source = Generator().manual_seed(5)
    inputs = torch.randn(count, features, generator=source)
    return inputs, torch.sin(inputs[:, :3].sum(1, keepdim=True)) + 0.3 * inputs[:, 3:4]


def mlp(inputs: int = FEATURES, width: int = 24, outputs: int = CLASSES, depth: int = 2) -> nn.Sequential:
    """Linear layers 0, 2, 4 … with ReLUs between them."""
    layers: list[nn.Module] = []
    for index in range(depth):
        layers += [nn.Linear(width if index else inputs, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, outputs))


def classified(model: nn.Module, inputs: Any = None, labels: Any = None, **changes: Any) -> Plain:
    """A model that learns labels by their cross entropy with AdamW."""
    if inputs is None:
        inputs, labels = blobs()
    optimizer = changes.pop("optimizer", None) or AdamW(model.parameters(), lr=3e-3)
    return Plain(model, inputs, labels, changes.pop("loss", functional.cross_entropy), optimizer, **changes)


def regressed(model: nn.Module, **changes: Any) -> Plain:
    """A model that learns numbers by their mean squared error."""
    inputs, targets = waves()
    return classified(model, inputs, targets, **{"loss": functional.mse_loss, **changes})


def loader(*tensors: Tensor, batch: int = BATCH, **named: Tensor) -> DataLoader:
    """Shuffled batches, as tuples of tensors or, by name, as dictionaries."""
    data = StackDataset(**named) if named else TensorDataset(*tensors)
    return DataLoader(data, batch_size=batch, shuffle=True, drop_last=True, generator=Generator().manual_seed(6))


class Learner(LightningModule):
    """Learns its batches by the loss of `loss`, with AdamW over its parameters."""

    rate = 3e-3

    def loss(self, batch: Any) -> Tensor:
        inputs, labels = batch
        return functional.cross_entropy(self(inputs), labels)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.loss(batch)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        return AdamW(self.parameters(), lr=self.rate)


class Classifier(Learner):
    """A perceptron in two parts, `encoder` and `head`."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(FEATURES, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.head = nn.Linear(width, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.encoder(inputs))


def fitted(make: Callable[[], LightningModule], *tensors: Tensor, **changes: Any) -> Fit:
    """A module that is made after the seed, with batches of the tensors; of `blobs` where none are given."""
    torch.manual_seed(0)
    return Fit(make(), loader(*(tensors or blobs(4 * BATCH))), **changes)


class Attention(nn.Module):
    """Self-attention with one head. A mask is true where a token may be attended to."""

    softmax_over = -1

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))

    def forward(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        scores = self.query(hidden) @ self.key(hidden).transpose(-2, -1) / hidden.shape[-1] ** 0.5
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        return scores.softmax(self.softmax_over) @ self.value(hidden)


class Block(nn.Module):
    """A transformer block with its norms in front."""

    def __init__(self, width: int, attention: type[Attention] = Attention) -> None:
        super().__init__()
        self.norm1, self.attention, self.norm2 = nn.LayerNorm(width), attention(width), nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        hidden = hidden + self.attention(self.norm1(hidden), mask)
        return hidden + self.mlp(self.norm2(hidden))


class Language(nn.Module):
    """A small transformer that predicts the next token."""

    is_causal = True

    def __init__(self, vocabulary: int = 16, width: int = 24, depth: int = 2, length: int = 16) -> None:
        super().__init__()
        self.embedding, self.position = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        for module in (self.embedding, self.position, self.head):
            nn.init.normal_(module.weight, std=0.1)

    def forward(self, ids: Tensor) -> Tensor:
        length = ids.shape[1]
        hidden = self.embedding(ids) + self.position(torch.arange(length))
        mask = torch.ones(length, length, dtype=torch.bool).tril() if self.is_causal else None
        for block in self.blocks:
            hidden = block(hidden, mask)
        return self.head(self.norm(hidden))


def predicts_tokens(make: Callable[[], nn.Module]) -> Plain:
    """A model, made after the seed, that learns the next token of each position."""
    torch.manual_seed(0)
    model, sequence = make(), tokens(length=11)
    return classified(model, sequence[:, :-1], sequence[:, 1:], loss=token_loss)


def token_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """The cross entropy of every position."""
    return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
