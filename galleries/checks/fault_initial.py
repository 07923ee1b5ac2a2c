"""Bugs of the weights at the start, and of the layout around norms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from galleries.checks.case import Expected, Fit, Pattern, Plain
from galleries.checks.parts import (
    CLASSES,
    FEATURES,
    Classifier,
    Language,
    Learner,
    classified,
    fitted,
    images,
    mlp,
    predicts_tokens,
)


def changed(change: Callable[[nn.Sequential], Any], depth: int = 2) -> Plain:
    torch.manual_seed(0)
    model = mlp(depth=depth)
    with torch.no_grad():
        change(model)
    return classified(model)


def over_confident(model: nn.Sequential) -> None:
    nn.init.normal_(model[-1].weight, std=3.0)


def all_zero(model: nn.Sequential) -> None:
    for parameter in model.parameters():
        parameter.zero_()


def dead_by_bias(model: nn.Sequential) -> None:
    model[2].bias.fill_(-100.0)


def linears(std: float) -> Callable[[nn.Sequential], None]:
    def change(model: nn.Sequential) -> None:
        for layer in model[:-1]:
            if isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, std=std)

    return change


def dropouts_in_a_row() -> Plain:
    torch.manual_seed(0)
    model = mlp(depth=3)
    dropped = [nn.Sequential(each, nn.Dropout(0.8)) if isinstance(each, nn.ReLU) else each for each in model]
    return classified(nn.Sequential(*dropped))


class Tied(Language):
    """Ties its head to an embedding of standard deviation 1, so that logits are of the square root of the width."""

    def __init__(self) -> None:
        super().__init__(width=64)
        nn.init.normal_(self.embedding.weight, std=1.0)
        self.head.weight = self.embedding.weight


def tied() -> Plain:
    return predicts_tokens(Tied)


class DeepTanh(Learner):
    """Twelve layers of weights that are too small by a factor of ten."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for index in range(12):
            layers += [nn.Linear(32 if index else FEATURES, 32), nn.Tanh()]
            nn.init.normal_(layers[-2].weight, std=0.02)
            nn.init.zeros_(layers[-2].bias)
        self.encoder, self.head = nn.Sequential(*layers), nn.Linear(32, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.encoder(inputs))


def conv_bias() -> Plain:
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU()),
        *(nn.Conv2d(8, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(128, CLASSES)),
    )
    return classified(model, *images())


class LinearBias(Classifier):
    """Has a batch norm after a linear layer with a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(FEATURES, 24), nn.BatchNorm1d(24), nn.ReLU())


def linear_bias() -> Fit:
    return fitted(LinearBias)


FAMILY = "initial"
PATTERNS = [
    Pattern(
        "over-confident",
        FAMILY,
        lambda: changed(over_confident),
        "The head starts so large that the loss is many times ln(5).",
        Expected(("InitialLoss",), "warn"),
        peer=8,
    ),
    Pattern(
        "tied-to-a-large-embedding",
        FAMILY,
        tied,
        "The head is tied to an embedding of standard deviation 1.",
        Expected(("InitialLoss",), "warn"),
    ),
    Pattern(
        "all-zero",
        FAMILY,
        lambda: changed(all_zero),
        "All weights start at 0, so that only the last bias ever learns.",
        Expected(("ConstantOutput", "NoGradient"), "fail"),
    ),
    Pattern(
        "dead-by-bias",
        FAMILY,
        lambda: changed(dead_by_bias),
        "A bias of −100 leaves all units of a ReLU dead.",
        Expected(("NoGradient", "ConstantOutput"), "fail"),
    ),
    Pattern(
        "dropouts-in-a-row",
        FAMILY,
        dropouts_in_a_row,
        "Three dropouts of 0.8 in a row, which were to keep 0.8, keep 0.008.",
        Expected(("DropoutTooHigh",), "warn"),
    ),
    Pattern(
        "exploding",
        FAMILY,
        lambda: changed(linears(1.0), depth=8),
        "Weights of standard deviation 1 multiply the scale by 3.5 in each of eight layers.",
        Expected(("PoorInitialization",), "warn"),
    ),
    Pattern(
        "vanishing",
        FAMILY,
        lambda: fitted(DeepTanh),
        "Weights that are ten times too small leave nothing after twelve layers.",
        Expected(("PoorInitialization",), "warn"),
    ),
    Pattern(
        "convolution-bias-before-norm",
        FAMILY,
        conv_bias,
        "A convolution has a bias that the batch norm behind it removes.",
        Expected(("BiasBeforeNorm",), "warn", "0*"),
    ),
    Pattern(
        "linear-bias-before-norm",
        FAMILY,
        linear_bias,
        "A linear layer has a bias that the batch norm behind it removes.",
        Expected(("BiasBeforeNorm",), "warn", "encoder.0*"),
    ),
]
