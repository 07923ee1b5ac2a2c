"""The models of the gallery: small, with what the silent changes act on, and healthy by themselves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from galleries.health.faulty_parts import Language, Learner, images, loader

EPOCH = 10
"""The batches of an epoch."""
PADDING = 0


class Pictures(Learner):
    """A convolutional network with batch norms, dropout and a frozen first layer, whose rate is halved after each epoch."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()]
        self.features = nn.Sequential(*layers, nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.dropout = nn.Dropout(0.2)
        self.head = nn.Linear(8 * 16, 10)
        self.freeze()

    def freeze(self) -> None:
        self.features[0].requires_grad_(False)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.dropout(functional.avg_pool2d(self.features(inputs), 2).flatten(1)))

    def augment(self, inputs: Tensor) -> Tensor:
        """Each picture with a random square of zeros, in random order of brightness."""
        corners = torch.randint(0, 5, (len(inputs), 2))
        places = torch.arange(8)
        inside = (places >= corners[..., None]) & (places < corners[..., None] + 4)
        return inputs.masked_fill((inside[:, 0, :, None] & inside[:, 1, None, :])[:, None], 0.0)

    def loss(self, batch: Any) -> Tensor:
        inputs, labels = batch
        return functional.cross_entropy(self(self.augment(inputs)), labels)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        inputs, labels = batch
        self.log("val_loss", functional.cross_entropy(self(inputs), labels))

    def factor(self, epoch: int) -> float:
        return float(0.5**epoch)

    def configure_optimizers(self) -> Any:
        optimizer = AdamW((p for p in self.parameters() if p.requires_grad), lr=3e-3)
        return {"optimizer": optimizer, "lr_scheduler": LambdaLR(optimizer, self.factor)}


def pictures(seed: int) -> tuple[DataLoader, DataLoader]:
    inputs, labels = images()
    return loader(inputs[: 16 * EPOCH], labels[: 16 * EPOCH], seed=seed, batch=16), loader(
        inputs[-32:], labels[-32:], seed=seed, batch=16, shuffle=False
    )


class Tokens(Language):
    """A transformer in bfloat16 that predicts tokens, with the embedding as its head. Two thirds of the tokens are padding."""

    def __init__(self) -> None:
        super().__init__(vocabulary=16, width=32, depth=2)
        self.tie()

    def tie(self) -> None:
        self.head.weight = self.embedding.weight

    def block(self, number: int) -> Any:
        return nullcontext()

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.embedding(inputs) + self.position(torch.arange(inputs.shape[1]))
        for number, block in enumerate(self.blocks):
            with self.block(number):
                hidden = block(hidden, self.mask(inputs.shape[1]))
        return self.head(self.norm(hidden))

    def count(self, targets: Tensor) -> Tensor:
        return (targets != PADDING).sum()

    def loss(self, batch: Any) -> Tensor:
        (sequence,) = batch
        logits, targets = self(sequence[:, :-1]).flatten(0, 1).float(), sequence[:, 1:].flatten()
        total = functional.cross_entropy(logits, targets, ignore_index=PADDING, reduction="sum")
        return total / self.count(targets)


def padded(seed: int, length: int = 24, count: int = 512) -> DataLoader:
    """Counting sequences of 5 to 10 tokens, filled up with padding."""
    source = Generator().manual_seed(seed)
    starts, strides = (torch.randint(1, 16, (count, 1), generator=source) for _ in range(2))
    sequence = (starts + strides * torch.arange(length)) % 15 + 1
    lengths = torch.randint(5, 11, (count, 1), generator=source)
    return loader(sequence.where(torch.arange(length) < lengths, PADDING), seed=seed, batch=16)


class Stream(IterableDataset):
    """Noisy vectors and their labels, which each worker reads in turn."""

    def __init__(self, seed: int, *, shares: bool = True) -> None:
        self.seed, self.shares = seed, shares

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        source = Generator().manual_seed(self.seed)
        info = get_worker_info()
        for number in range(100_000):
            vector = torch.randn(16, generator=source)
            if not self.shares or info is None or number % info.num_workers == info.id:
                yield vector, (vector[:4].sum() > 0).long()


class Vectors(Learner):
    """A perceptron that learns from vectors, and its parts for two ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = nn.Linear(16, 16), nn.Linear(16, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.encoder(inputs).relu())

    def configure_optimizers(self) -> Any:
        return SGD(self.parameters(), lr=0.1)


def stream(seed: int, *, shares: bool = True, workers: int = 2) -> DataLoader:
    return DataLoader(Stream(seed, shares=shares), batch_size=8, num_workers=workers)
