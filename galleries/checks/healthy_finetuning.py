"""Healthy fine-tuning: parts that are frozen on purpose."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW

from galleries.checks.case import Pattern
from galleries.checks.parts import BATCH, CLASSES, FEATURES, Classifier, Learner, fitted, images


class HeadOnly(Classifier):
    """Runs a frozen encoder without gradients, and trains its head."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder.requires_grad_(False).eval()

    def forward(self, inputs: Tensor) -> Tensor:
        with torch.no_grad():
            hidden = self.encoder(inputs)
        return self.head(hidden)

    def configure_optimizers(self) -> Any:
        return AdamW(self.head.parameters(), lr=3e-3)


class Unfreezing(Classifier):
    """Gives the optimizer everything, and unfreezes its encoder at a later step."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder.requires_grad_(False)

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if self.global_step == 2:
            self.encoder.requires_grad_(True)


class Lora(nn.Module):
    """Adds the product of two narrow matrices, of which the second starts at 0, to a frozen layer."""

    def __init__(self, base: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a, self.b = nn.Linear(base.in_features, rank, bias=False), nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.b.weight)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.base(inputs) + 2 * self.b(self.a(inputs))


class Adapted(Classifier):
    def __init__(self) -> None:
        super().__init__()
        for index in (0, 2):
            self.encoder[index] = Lora(self.encoder[index])

    def configure_optimizers(self) -> Any:
        return AdamW([parameter for parameter in self.parameters() if parameter.requires_grad], lr=3e-3)


class ZeroHead(Classifier):
    """Starts with a head of 0, so that the outputs of all samples are equal and the encoder has no gradient yet."""

    def __init__(self) -> None:
        super().__init__()
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)


class FrozenNorms(Learner):
    """Keeps its batch norms in evaluation and frozen, with statistics of former data."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *(nn.Conv2d(1, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU()),
            *(nn.Conv2d(8, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten()),
        )
        self.head = nn.Linear(128, CLASSES)
        with torch.no_grad():
            for _ in range(30):
                self.features(images()[0])
        self.freeze_norms()

    def freeze_norms(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval().requires_grad_(False)

    def train(self, mode: bool = True) -> Any:
        super().train(mode)
        self.freeze_norms()
        return self

    def forward(self, pixels: Tensor) -> Tensor:
        return self.head(self.features(pixels))


class Rates(Classifier):
    """Trains the encoder at a tenth of the rate of the head, with no decay on biases."""

    def configure_optimizers(self) -> Any:
        named = dict(self.named_parameters())
        return AdamW(
            [
                {"params": [named[name] for name in named if name.startswith("encoder") and "weight" in name], "lr": 3e-4},
                {"params": [named[name] for name in named if name.startswith("head") and "weight" in name]},
                {"params": [named[name] for name in named if "bias" in name], "weight_decay": 0.0},
            ],
            lr=3e-3,
        )


class Prompted(Learner):
    """Trains a few vectors in front of a frozen transformer, and a head."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).requires_grad_(False)
        self.embed = nn.Linear(4, 16).requires_grad_(False)
        self.prompt, self.head = nn.Parameter(torch.randn(2, 16) / 4), nn.Linear(16, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.embed(inputs.unflatten(1, (FEATURES // 4, 4)))
        return self.head(self.encoder(torch.cat([self.prompt.expand(len(inputs), -1, -1), hidden], 1)).mean(1))


FAMILY = "finetuning"
PATTERNS = [
    Pattern("head-only", FAMILY, lambda: fitted(HeadOnly), "A head on a frozen encoder that runs without gradients."),
    Pattern("unfreezing", FAMILY, lambda: fitted(Unfreezing), "An encoder in the optimizer that is unfrozen later."),
    Pattern("lora", FAMILY, lambda: fitted(Adapted), "Low-rank adapters that start at 0, on frozen layers."),
    Pattern("zero-head", FAMILY, lambda: fitted(ZeroHead), "A head that starts at 0."),
    Pattern(
        "frozen-batch-norms",
        FAMILY,
        lambda: fitted(FrozenNorms, *images(4 * BATCH)),
        "Batch norms that stay in evaluation and frozen.",
    ),
    Pattern("three-groups", FAMILY, lambda: fitted(Rates), "Parameter groups with their own rate and decay."),
    Pattern("prompt-tuning", FAMILY, lambda: fitted(Prompted), "Trained vectors in front of a frozen transformer."),
]
