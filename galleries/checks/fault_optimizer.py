"""Bugs of the optimizer: what it holds, what it moves, and how far."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, AdamW, Optimizer

from galleries.checks.case import Expected, Fit, Pattern, Plain
from galleries.checks.parts import BATCH, CLASSES, FEATURES, Classifier, Learner, blobs, classified, fitted, mlp


def head_replaced() -> Plain:
    torch.manual_seed(0)
    model = mlp(outputs=100)
    optimizer = AdamW(model.parameters(), lr=3e-3)
    model[4] = nn.Linear(24, CLASSES)
    return classified(model, optimizer=optimizer)


def betas_swapped() -> Plain:
    torch.manual_seed(0)
    model = mlp()
    return classified(model, optimizer=AdamW(model.parameters(), lr=3e-3, betas=(0.999, 0.9)))


class GroupForgotten(Classifier):
    """Has a second encoder, which `configure_optimizers` forgets."""

    def __init__(self) -> None:
        super().__init__()
        self.context = nn.Linear(FEATURES, 24)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.encoder(inputs) + self.context(inputs))

    def configure_optimizers(self) -> Any:
        return AdamW([*self.encoder.parameters(), *self.head.parameters()], lr=3e-3)


def copied_after() -> Plain:
    torch.manual_seed(0)
    model = mlp()
    optimizer = AdamW(model.parameters(), lr=3e-3)
    return classified(copy.deepcopy(model), optimizer=optimizer)


class Stranger(Classifier):
    """Scales its logits by a tensor that is no parameter of it, but is in the optimizer."""

    def __init__(self) -> None:
        super().__init__()
        self.scales = [torch.ones((), requires_grad=True)]

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs) * self.scales[0]

    def configure_optimizers(self) -> Any:
        return AdamW([*self.parameters(), *self.scales], lr=3e-3)


class LayersInAList(Classifier):
    """Keeps layers in a list of Python, so that they are not parameters of the module."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = [nn.Linear(24, 24), nn.Linear(24, 24)]

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.encoder(inputs)
        for layer in self.hidden:
            hidden = functional.relu(layer(hidden))
        return self.head(hidden)


def rate_zero() -> Plain:
    torch.manual_seed(0)
    model = mlp()
    return classified(model, optimizer=SGD(model.parameters(), lr=0.0, momentum=0.9))


class GroupOfZero(Classifier):
    """Gives its encoder a rate of 0, which no schedule ever raises."""

    def configure_optimizers(self) -> Any:
        return AdamW([{"params": self.encoder.parameters(), "lr": 0.0}, {"params": self.head.parameters()}], lr=3e-3)


class DecaysEverything(Optimizer):
    """Gradient descent that decays parameters without a gradient, too."""

    def __init__(self, params: Any, lr: float, decay: float) -> None:
        super().__init__(params, {"lr": lr, "decay": decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.mul_(1 - group["lr"] * group["decay"])
                if parameter.grad is not None:
                    parameter.sub_(group["lr"] * parameter.grad)
        return loss


class FrozenDecays(Classifier):
    """Freezes its encoder, which the optimizer decays all the same."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder.requires_grad_(False)

    def configure_optimizers(self) -> Any:
        return DecaysEverything(self.parameters(), lr=0.1, decay=0.01)


def frozen_is_trained() -> Plain:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Sequential(nn.Linear(FEATURES, 24), nn.ReLU()), nn.Linear(24, CLASSES))
    model.requires_grad_(False)
    for parameter in model.parameters():  # the head was meant
        parameter.requires_grad_(True)
    return classified(model, options={"checks": {"FrozenMoves": {"params": ["0.*"]}}}, peer_options={"frozen": ["0"]})


class ForgetsOneStep(Learner):
    """A GAN whose training step never steps the optimizer of the generator."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.generator, self.discriminator = mlp(4, 16, FEATURES, 1), mlp(FEATURES, 16, 1, 1)

    def training_step(self, batch: Any, batch_idx: int) -> None:
        real, _ = batch
        generator, discriminator = self.optimizers()
        fake = self.generator(torch.randn(len(real), 4))
        loss = functional.softplus(-self.discriminator(real)) + functional.softplus(self.discriminator(fake.detach()))
        discriminator.zero_grad()
        self.manual_backward(loss.mean())
        discriminator.step()
        generator.zero_grad()
        self.manual_backward(functional.softplus(-self.discriminator(fake)).mean())

    def configure_optimizers(self) -> Any:
        return [AdamW(part.parameters(), lr=1e-3) for part in (self.generator, self.discriminator)]


class ZeroedBeforeStep(Classifier):
    """Removes its gradients between the backward pass and the step."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer = self.optimizers()
        self.manual_backward(self.loss(batch))
        optimizer.zero_grad()
        optimizer.step()


def rate_tiny() -> Plain:
    torch.manual_seed(0)
    model = mlp()
    return classified(model, optimizer=SGD(model.parameters(), lr=1e-5), options={"checks": {"OverfitsBatch": True}})


def rate_huge() -> Fit:
    class Huge(Classifier):
        def configure_optimizers(self) -> Any:
            return SGD(self.parameters(), lr=300.0)

    return fitted(Huge, *blobs(4 * BATCH), options={"checks": {"OverfitsBatch": True}})


def accumulation_not_divided() -> Plain:
    torch.manual_seed(0)
    model = mlp()
    return classified(model, optimizer=SGD(model.parameters(), lr=0.1), options={"accumulate": 4})


class DividesAgain(Classifier):
    """Divides its loss by the number of accumulated batches, as Lightning does too."""

    def loss(self, batch: Any) -> Tensor:
        return super().loss(batch) / self.trainer.accumulate_grad_batches

    def configure_optimizers(self) -> Any:
        return SGD(self.parameters(), lr=0.1)


FAMILY = "optimizer"
COVERS, STRANGER, MOVE = "NotInOptimizer", "StrangerInOptimizer", "UnchangedParameter"
PATTERNS = [
    Pattern(
        "head-replaced",
        FAMILY,
        head_replaced,
        "The head was replaced after the optimizer was made.",
        Expected((COVERS,), "fail", "4.*"),
        peer=1,
    ),
    Pattern(
        "group-forgotten",
        FAMILY,
        lambda: fitted(GroupForgotten),
        "`configure_optimizers` leaves out one of three parts.",
        Expected((COVERS,), "fail", "context.*"),
    ),
    Pattern(
        "copied-after",
        FAMILY,
        copied_after,
        "The model is a copy of the one whose parameters the optimizer holds.",
        Expected((COVERS,), "fail", "0.weight"),
    ),
    Pattern(
        "stranger-in-optimizer",
        FAMILY,
        lambda: fitted(Stranger),
        "The optimizer holds a tensor that is no parameter of the module, so that no checkpoint has it.",
        Expected((STRANGER,), "warn"),
    ),
    Pattern(
        "layers-in-a-list",
        FAMILY,
        lambda: fitted(LayersInAList),
        "Layers in a list of Python are used, but neither trained nor saved.",
        Expected((COVERS,), "fail", "hidden*"),
    ),
    Pattern("rate-zero", FAMILY, rate_zero, "The learning rate is 0.", Expected((MOVE,), "fail", "0.weight")),
    Pattern(
        "group-of-zero",
        FAMILY,
        lambda: fitted(GroupOfZero),
        "One parameter group has a learning rate of 0, which no schedule raises.",
        Expected((MOVE,), "fail", "encoder.*"),
    ),
    Pattern(
        "frozen-decays",
        FAMILY,
        lambda: fitted(FrozenDecays),
        "An optimizer decays parameters that do not require a gradient.",
        Expected(("FrozenMoves",), "fail", "encoder.*"),
    ),
    Pattern(
        "frozen-is-trained",
        FAMILY,
        frozen_is_trained,
        "The loop that unfreezes the head unfreezes everything; the caller says what should be frozen.",
        Expected(("FrozenMoves",), "fail", "0.*"),
        peer=6,
    ),
    Pattern(
        "one-step-forgotten",
        FAMILY,
        lambda: fitted(ForgetsOneStep),
        "Of two optimizers in manual optimization, one never steps.",
        Expected((MOVE,), "fail", "generator.*"),
    ),
    Pattern(
        "zeroed-before-step",
        FAMILY,
        lambda: fitted(ZeroedBeforeStep),
        "`zero_grad` is called between backward and step.",
        Expected((MOVE,), "fail", "encoder.*"),
    ),
    Pattern(
        "betas-swapped",
        FAMILY,
        betas_swapped,
        "The betas of AdamW are in the wrong order.",
        Expected(("SwappedBetas",), "warn"),
    ),
    Pattern(
        "accumulation-not-divided",
        FAMILY,
        accumulation_not_divided,
        "A loop accumulates four batches, and nothing divides their losses by four.",
        Expected(("AccumulationNotDivided",), "warn"),
    ),
    Pattern(
        "divided-again",
        FAMILY,
        lambda: fitted(DividesAgain, trainer={"accumulate_grad_batches": 4}),
        "The training step divides its loss by the number of accumulated batches, as Lightning does too.",
        Expected(("AccumulationNotDivided",), "warn"),
    ),
    Pattern(
        "rate-tiny",
        FAMILY,
        rate_tiny,
        "The learning rate is so small that one batch is not learned.",
        Expected(("OverfitsBatch",), "fail"),
        peer=10,
    ),
    Pattern(
        "rate-huge",
        FAMILY,
        rate_huge,
        "The learning rate is so large that the loss of one batch grows.",
        Expected(("OverfitsBatch",), "fail"),
    ),
]
