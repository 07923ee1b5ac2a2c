"""Bugs of the graph: gradients that do not reach parameters."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from galleries.checks.case import Expected, Pattern, Plain
from galleries.checks.parts import CLASSES, FEATURES, Classifier, classified, fitted, mlp, regressed


class Parted(nn.Module):
    """A backbone and a head; subclasses spoil what is between them."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone, self.head = nn.Linear(FEATURES, 24), nn.Linear(24, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.between(self.backbone(inputs)))

    def between(self, hidden: Tensor) -> Tensor:
        return hidden.relu()


class CutByData(Parted):
    def between(self, hidden: Tensor) -> Tensor:
        return hidden.data.relu()


class Rounded(Parted):
    def between(self, hidden: Tensor) -> Tensor:
        return (4 * hidden).round() / 4


class Unused(Parted):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(24)


class WithoutGradient(Classifier):
    """Encodes under no_grad, as for a frozen encoder, but the encoder is not frozen."""

    def forward(self, inputs: Tensor) -> Tensor:
        with torch.no_grad():
            hidden = self.encoder(inputs)
        return self.head(hidden)


class DetachedBranch(Classifier):
    """Adds a branch that is detached."""

    def __init__(self) -> None:
        super().__init__()
        self.branch = nn.Linear(FEATURES, 24)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.encoder(inputs) + self.branch(inputs).detach())


class LossDetached(Classifier):
    """Builds a new tensor from the number of its loss."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return torch.tensor(self.loss(batch).item(), requires_grad=True)


class AllFrozen(Classifier):
    """Freezes itself before the head is unfrozen, which is forgotten; a penalty keeps the loss differentiable."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.ones(()))
        for part in (self.encoder, self.head):
            part.requires_grad_(False)

    def loss(self, batch: Any) -> Tensor:
        return super().loss(batch).detach() + (self.temperature - 1) ** 2


def made(model: type[nn.Module], **changes: Any) -> Plain:
    torch.manual_seed(0)
    return classified(model(), **changes)


def loss_ignores_model() -> Plain:
    torch.manual_seed(0)
    return regressed(
        mlp(outputs=1), loss=lambda outputs, targets: functional.mse_loss(targets, targets.mean().expand_as(targets))
    )


def loss_of_items() -> Plain:
    torch.manual_seed(0)

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return torch.tensor(functional.mse_loss(outputs, targets).item())

    return regressed(mlp(outputs=1), loss=loss)


def choice_by_argmax() -> Plain:
    class Choice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate, self.experts = nn.Linear(FEATURES, 3), nn.Parameter(torch.randn(3, FEATURES, CLASSES) / 4)

        def forward(self, inputs: Tensor) -> Tensor:
            chosen = self.gate(inputs).argmax(1)
            return torch.einsum("bf,bfc->bc", inputs, self.experts[chosen])

    return made(Choice)


FAMILY, REACH = "graph", ("NoGradient",)
PATTERNS = [
    Pattern(
        "cut-by-data",
        FAMILY,
        lambda: made(CutByData),
        "`.data` cuts the graph behind the backbone.",
        Expected(REACH, "fail", "backbone.*"),
        peer=2,
    ),
    Pattern(
        "rounded",
        FAMILY,
        lambda: made(Rounded),
        "The features are rounded, which has a gradient of 0 everywhere.",
        Expected(REACH, "fail", "backbone.*"),
    ),
    Pattern(
        "chosen-by-argmax",
        FAMILY,
        choice_by_argmax,
        "A gate chooses by argmax, so that it is never trained.",
        Expected(REACH, "fail", "gate.*"),
    ),
    Pattern(
        "never-called",
        FAMILY,
        lambda: made(Unused),
        "A norm is made, and never called.",
        Expected(REACH, "fail", "norm.*"),
    ),
    Pattern(
        "without-gradient",
        FAMILY,
        lambda: fitted(WithoutGradient),
        "The encoder runs under `no_grad`, but is not frozen.",
        Expected(REACH, "fail", "encoder.*"),
    ),
    Pattern(
        "detached-branch",
        FAMILY,
        lambda: fitted(DetachedBranch),
        "One of two branches is detached.",
        Expected(REACH, "fail", "branch.*"),
    ),
    Pattern(
        "loss-detached",
        FAMILY,
        lambda: fitted(LossDetached),
        "The training step returns a new tensor with the number of the loss.",
        Expected(REACH, "fail", "encoder.*"),
    ),
    Pattern(
        "loss-of-items",
        FAMILY,
        loss_of_items,
        "The loss goes through `.item()`.",
        Expected(REACH, "fail"),
        peer=10,
    ),
    Pattern(
        "loss-ignores-model",
        FAMILY,
        loss_ignores_model,
        "The loss compares the targets with their mean, not with the outputs.",
        Expected(REACH, "fail"),
    ),
    Pattern(
        "only-a-temperature-trains",
        FAMILY,
        lambda: fitted(AllFrozen),
        "Everything that the outputs depend on is frozen; only a scalar beside it is trained.",
        Expected(("InputsMatter", *REACH), "fail"),
    ),
]
