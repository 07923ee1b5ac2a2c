"""Healthy trainings whose loop is special: schedules, accumulation, precision, clipping."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import LambdaLR

from galleries.checks.case import Pattern
from galleries.checks.parts import BATCH, CLASSES, Classifier, blobs, fitted


class WarmsUp(Classifier):
    """Raises its rate from 0, so that the first step moves nothing."""

    def configure_optimizers(self) -> Any:
        optimizer = AdamW(self.parameters(), lr=3e-3)
        schedule = LambdaLR(optimizer, lambda step: min(1.0, step / 10))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class ByHand(Classifier):
    """Accumulates two batches by hand, with a gradient that is clipped."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer = self.optimizers()
        self.manual_backward(self.loss(batch) / 2)
        if batch_idx % 2:
            self.clip_gradients(optimizer, 1.0, "norm")
            optimizer.step()
            optimizer.zero_grad()


class LogsMuch(Classifier):
    """Counts its steps in a buffer and in an attribute, and returns a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self.losses: list[float] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        inputs, labels = batch
        logits = self(inputs)
        loss = functional.cross_entropy(logits, labels)
        self.steps += 1
        self.log_dict({"loss_of_step": loss, "accuracy": (logits.argmax(1) == labels).float().mean()}, prog_bar=True)
        return {"loss": loss, "logits": logits.detach()}


class SharpnessAware(Classifier):
    """Descends from the worst point near by, in two passes in manual optimization."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(self.loss(batch))
        steps = []
        with torch.no_grad():
            norm = torch.stack([parameter.grad.norm() for parameter in self.parameters()]).norm()
            for parameter in self.parameters():
                steps.append(0.05 * parameter.grad / (norm + 1e-12))
                parameter.add_(steps[-1])
        optimizer.zero_grad()
        self.manual_backward(self.loss(batch))
        with torch.no_grad():
            for parameter, step in zip(self.parameters(), steps, strict=True):
                parameter.sub_(step)
        optimizer.step()

    def configure_optimizers(self) -> Any:
        return SGD(self.parameters(), lr=0.1, momentum=0.9)


class Penalised(Classifier):
    """Adds a penalty on the hidden layer, and noise to the inputs while it trains."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.utils.parametrizations.weight_norm(nn.Linear(24, CLASSES))

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            inputs = inputs + 0.1 * torch.randn_like(inputs)
        return super().forward(inputs)

    def loss(self, batch: Any) -> Tensor:
        return super().loss(batch) + 1e-3 * self.encoder(batch[0]).square().mean()


FAMILY = "trainings"
PATTERNS = [
    Pattern("warm-up-from-zero", FAMILY, lambda: fitted(WarmsUp), "A schedule whose first rate is 0."),
    Pattern(
        "accumulation",
        FAMILY,
        lambda: fitted(Classifier, trainer={"accumulate_grad_batches": 2}),
        "A step for every second batch.",
    ),
    Pattern("accumulation-by-hand", FAMILY, lambda: fitted(ByHand), "The same in manual optimization."),
    Pattern("bfloat16", FAMILY, lambda: fitted(Classifier, trainer={"precision": "bf16-mixed"}), "Autocast to bfloat16."),
    Pattern(
        "clipping",
        FAMILY,
        lambda: fitted(LogsMuch, *blobs(4 * BATCH), trainer={"gradient_clip_val": 0.5}),
        "Clipped gradients, and a training step with buffers and a dictionary.",
    ),
    Pattern("sharpness-aware", FAMILY, lambda: fitted(SharpnessAware), "Two passes for each step."),
    Pattern("penalised", FAMILY, lambda: fitted(Penalised), "Weight norm, a penalty, and noise while training."),
]
