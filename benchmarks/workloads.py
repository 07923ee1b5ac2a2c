"""The models that are trained while the clock runs: four of different shape, and a chain of any length.

A has many small tensors and short steps, B convolutions, C large matrices, D very many very small tensors. For a GPU they are
larger, so that a step takes some milliseconds on an H100, and G is a GPT of the size that people train; tiny ones try the code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset

Batch = tuple[Tensor, Tensor]
_SEED = 20_240_501


class Block(nn.Module):
    """Two convolutions and the way around them, as in ResNet-18."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.relu = nn.ReLU(inplace=True)  # one module, called twice, in place: as torchvision does
        self.conv2 = nn.Conv2d(outside, outside, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.around: nn.Module = nn.Identity()
        if stride != 1 or inside != outside:
            self.around = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x: Tensor) -> Tensor:
        inner = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out: Tensor = self.relu(inner + self.around(x))
        return out


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        out: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return out


class Layer(nn.Module):
    """Attention and a perceptron, each behind a norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        out: Tensor = x + self.mlp(self.norm2(x))
        return out


class GPT(nn.Module):
    """A decoder with learned positions; the head is not tied."""

    def __init__(self, layers: int, width: int, heads: int, length: int, vocabulary: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.layers = nn.Sequential(*(Layer(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        indices = torch.arange(x.shape[1], device=x.device)
        logits: Tensor = self.head(self.norm(self.layers(self.tokens(x) + self.positions(indices))))
        return logits.flatten(0, 1)


class Training(LightningModule):
    """Cross-entropy of any of the nets; logs nothing of its own, so that the step without us is as short as can be."""

    def __init__(self, net: nn.Module, optimizer: Callable[[Any], torch.optim.Optimizer]) -> None:
        super().__init__()
        self.net = net
        self._optimizer = optimizer

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        return F.cross_entropy(self.net(batch[0]), batch[1].flatten())

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        F.cross_entropy(self.net(batch[0]), batch[1].flatten())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return self._optimizer(self.parameters())


class Cycle(IterableDataset[Batch]):
    """A few batches made beforehand, again and again: loading takes no time."""

    def __init__(self, batches: list[Batch], steps: int) -> None:
        self.batches = batches
        self.steps = steps

    def __iter__(self) -> Iterator[Batch]:
        return (self.batches[step % len(self.batches)] for step in range(self.steps))


@dataclass(frozen=True)
class Workload:
    """A model with its data.

    Args:
        name: a letter.
        title: what it is, for the tables.
        net: makes it.
        batch: makes one batch.
        optimizer: makes the optimizer.
        step_ms: about how long a step takes on two cores; blocks are planned by it, and no result rests on it.
        options: of the trainer, in all steps.
    """

    name: str
    title: str
    net: Callable[[], nn.Module]
    batch: Callable[[], Batch]
    optimizer: Callable[[Any], torch.optim.Optimizer]
    step_ms: float
    options: Mapping[str, Any] = field(default_factory=dict)

    def make(self, steps: int, device: str = "cpu") -> tuple[Training, DataLoader[Batch]]:
        """The module and a loader of so many batches, always the same; on a device they lie there from the beginning."""
        torch.manual_seed(_SEED)
        with torch.device(device):
            module = Training(self.net(), self.optimizer)
            batches = [self.batch() for _ in range(4)]
        return module, DataLoader(Cycle(batches, steps), batch_size=None)


def mlp(width: int = 256) -> nn.Module:
    """Ten layers with ReLU."""
    layers: list[nn.Module] = [part for _ in range(10) for part in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def resnet(width: int = 32) -> nn.Module:
    """ResNet-18 with a stem for small images."""
    widths, inside = (width, 2 * width, 4 * width, 8 * width), width
    parts: list[nn.Module] = [nn.Conv2d(3, inside, 3, padding=1, bias=False), nn.BatchNorm2d(inside), nn.ReLU(inplace=True)]
    for position, outside in enumerate(widths):
        parts += [Block(inside, outside, 1 if position == 0 else 2), Block(outside, outside, 1)]
        inside = outside
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, 10))


def _tokens(batch: int, length: int, vocabulary: int) -> Batch:
    text = torch.randint(vocabulary, (batch, length + 1))
    return text[:, :-1].contiguous(), text[:, 1:].contiguous()


def _adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-4)


def _sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1e-4)


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload(
            "A", "MLP 10×256, ReLU, batch 128", mlp, lambda: (torch.randn(128, 256), torch.randint(10, (128,))), _adamw, 6
        ),
        Workload(
            "B",
            "ResNet-18-like, width 32, 32×32, batch 32",
            resnet,
            lambda: (torch.randn(32, 3, 32, 32), torch.randint(10, (32,))),
            _adamw,
            170,
        ),
        Workload(
            "C",
            "GPT, 6 layers, d 384, sequence 128, batch 8",
            lambda: GPT(6, 384, 6, 128, 8000),
            lambda: _tokens(8, 128, 8000),
            _adamw,
            450,
        ),
        Workload(
            "D",
            "GPT, 48 layers, d 64, sequence 32, batch 8",
            lambda: GPT(48, 64, 2, 32, 1000),
            lambda: _tokens(8, 32, 1000),
            _adamw,
            100,
        ),
    )
}


def _mlp(width: int, batch: int, step_ms: float) -> Workload:
    return Workload(
        "A",
        f"MLP 10×{width}, ReLU, batch {batch}",
        lambda: mlp(width),
        lambda: (torch.randn(batch, width), torch.randint(10, (batch,))),
        _adamw,
        step_ms,
    )


def _resnet(width: int, batch: int, step_ms: float) -> Workload:
    return Workload(
        "B",
        f"ResNet-18-like, width {width}, 32×32, batch {batch}",
        lambda: resnet(width),
        lambda: (torch.randn(batch, 3, 32, 32), torch.randint(10, (batch,))),
        _adamw,
        step_ms,
    )


def _gpt(
    name: str, layers: int, width: int, heads: int, length: int, batch: int, vocabulary: int, step_ms: float, **options: Any
) -> Workload:
    return Workload(
        name,
        f"GPT, {layers} layers, d {width}, sequence {length}, batch {batch}" + ", bf16-mixed" * bool(options),
        lambda: GPT(layers, width, heads, length, vocabulary),
        lambda: _tokens(batch, length, vocabulary),
        _adamw,
        step_ms,
        options,
    )


def _by_name(*workloads: Workload) -> dict[str, Workload]:
    return {workload.name: workload for workload in workloads}


SIZES: dict[str, dict[str, Workload]] = {
    "cpu": WORKLOADS,
    # The step times of A, D and G are those of an H200, the others are guesses. G has 354 million parameters.
    # Those of tiny ones make blocks short.
    "gpu": _by_name(
        _mlp(2048, 2048, 11),
        _resnet(64, 512, 45),
        _gpt("C", 6, 768, 12, 512, 16, 8000, 45),
        _gpt("D", 48, 256, 4, 128, 32, 1000, 64),
        _gpt("G", 24, 1024, 16, 1024, 8, 24_576, 63, precision="bf16-mixed"),
    ),
    "tiny": _by_name(
        _mlp(16, 8, 300),
        _resnet(4, 2, 300),
        _gpt("C", 2, 16, 2, 8, 2, 50, 300),
        _gpt("D", 6, 8, 2, 8, 2, 50, 300),
        _gpt("G", 2, 16, 2, 8, 2, 50, 300, precision="bf16-mixed"),
    ),
}


def chain(rows: int) -> Workload:
    """Small linear layers in sequence; each has six rows: output, its gradient, two parameters and their gradients."""
    layers = max(1, round(rows / 6))
    return Workload(
        f"chain{rows}",
        f"{layers} linear layers of 8",
        lambda: nn.Sequential(*(nn.Linear(8, 8) for _ in range(layers))),
        lambda: (torch.randn(4, 8), torch.randint(8, (4,))),
        _sgd,
        max(1.0, 0.03 * layers),
    )
