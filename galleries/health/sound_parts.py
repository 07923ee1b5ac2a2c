"""Data and helpers of several families of healthy trainings, beside those of faulty_parts.py, which are sound too."""

from __future__ import annotations

import textwrap
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.distributions import Beta
from torch.nn import functional
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from galleries.health.faulty_parts import Learner

CHARACTERS = 96
"""The printable characters of ASCII and the end of a line."""


def blobs(seed: int, classes: int = 5, features: int = 16, count: int = 2048, noise: float = 1.0) -> tuple[Tensor, Tensor]:
    """Gaussian clouds of points around one centre for each class."""
    source = Generator().manual_seed(3000 + seed)
    centres = torch.randn(classes, features, generator=source)
    labels = torch.randint(classes, (count,), generator=source)
    return centres[labels] + noise * torch.randn(count, features, generator=source), labels


def spirals(seed: int, classes: int = 3, count: int = 2048) -> tuple[Tensor, Tensor]:
    """Arms of a spiral in the plane, one for each class."""
    source = Generator().manual_seed(4000 + seed)
    labels = torch.randint(classes, (count,), generator=source)
    radius = torch.rand(count, generator=source)
    angle = 2 * torch.pi * labels / classes + 4 * radius + 0.1 * torch.randn(count, generator=source)
    return 2 * torch.stack([radius * angle.sin(), radius * angle.cos()], 1), labels


@lru_cache
def _text() -> Tensor:
    source = Path(textwrap.__file__).read_text(encoding="ascii", errors="ignore")
    return torch.tensor(
        [95 if character == "\n" else ord(character) - 32 for character in source if character >= " " or character == "\n"]
    )


def characters(seed: int, length: int = 33, count: int = 2048) -> Tensor:
    """Pieces of the source text of a module of Python, [count, length]."""
    text = _text()
    start = torch.randint(len(text) - length, (count, 1), generator=Generator().manual_seed(5000 + seed))
    return text[start + torch.arange(length)]


def next_token_loss(logits: Tensor, sequence: Tensor) -> Tensor:
    """The cross entropy of each token given those before."""
    return functional.cross_entropy(logits[:, :-1].flatten(0, 1), sequence[:, 1:].flatten())


def scheduled(optimizer: Optimizer, factor: Any) -> dict[str, Any]:
    """What `configure_optimizers` returns for a rate that is multiplied by `factor(step)`."""
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": LambdaLR(optimizer, factor), "interval": "step"}}


def warmup_cosine(warmup: int, steps: int) -> Any:
    """A rate that rises linearly for `warmup` steps and falls as a cosine to 0 at the last step."""

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        return 0.5 * (1 + float(torch.cos(torch.tensor(torch.pi * min(1.0, (step - warmup) / (steps - 1 - warmup))))))

    return factor


def warmup(steps: int) -> Any:
    """A rate that rises linearly for some steps and stays."""
    return lambda step: min(1.0, (step + 1) / steps)


class Mixup(Learner):
    """Learns convex combinations of pairs of samples and of their labels."""

    def loss(self, batch: Any) -> Tensor:
        inputs, labels = batch
        share, order = Beta(0.4, 0.4).sample(), torch.randperm(len(inputs))
        logits = self(share * inputs + (1 - share) * inputs[order])
        return share * functional.cross_entropy(logits, labels) + (1 - share) * functional.cross_entropy(logits, labels[order])


class Classifier(Learner):
    """A network that learns labels. It logs its accuracy beside its loss."""

    def __init__(self, optimizer: Any = None) -> None:
        super().__init__(optimizer)

    def loss(self, batch: Any) -> Tensor:
        inputs, labels = batch
        logits = self(inputs)
        self.log("train_accuracy", (logits.argmax(1) == labels).float().mean())
        return functional.cross_entropy(logits, labels)


class Net(Classifier):
    """A classifier made of an encoder and a head."""

    def __init__(self, encoder: nn.Module, head: nn.Module, optimizer: Any = None) -> None:
        super().__init__(optimizer)
        self.encoder, self.head = encoder, head

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.encoder(inputs))
