"""Faults of activations: units, heads and layers that are dead, saturated, constant or far too large."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from galleries.health.faulty_parts import (
    Language,
    Learner,
    Perceptron,
    Regressor,
    adamw,
    digits,
    loader,
    sgd,
    stack,
    tokens,
    waves,
)
from galleries.health.training import Case, Expectation, Training

DEAD = ("DeadUnits", "DeadLayer")


@torch.no_grad()
def dead_head(seed: int) -> Case:
    torch.manual_seed(seed)
    model = Language(adamw(3e-3))
    attention = model.blocks[1].attention
    attention.value.weight[:8] = 0.0
    attention.value.bias[:8] = 0.0
    attention.project.weight[:, :8] = 0.0
    return Case(model, loader(*tokens(seed), seed=seed, batch=16))


@torch.no_grad()
def dead_relu_layer(seed: int) -> Case:
    torch.manual_seed(seed)
    model = Perceptron(adamw(1e-3), depth=4)
    model.encoder[4].bias.fill_(-20.0)
    return Case(model, loader(*digits(), seed=seed))


@torch.no_grad()
def half_of_the_units(seed: int) -> Case:
    torch.manual_seed(seed)
    model = Perceptron(adamw(1e-3))
    model.encoder[2].bias[:32] = -20.0
    return Case(model, loader(*digits(), seed=seed))


def units_die_by_spike(seed: int) -> Case:
    """The spike pushes biases down once; what is dead afterwards gets no gradient that would revive it."""
    torch.manual_seed(seed)
    return Case(DiesLater(adamw(1e-3)), loader(*digits(), seed=seed))


class DiesLater(Perceptron):
    """Loses a layer at step 80, when a bad surgery of weights subtracts a mean twice."""

    @torch.no_grad()
    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if self.global_step == 80:
            self.encoder[2].bias -= 10.0


def tanh_of_huge_inputs(seed: int) -> Case:
    torch.manual_seed(seed)
    inputs, targets = waves(seed)
    return Case(Regressor(adamw(1e-3), activation=nn.Tanh), loader(300 * inputs, targets, seed=seed))


@torch.no_grad()
def tanh_of_huge_biases(seed: int) -> Case:
    torch.manual_seed(seed)
    model = Perceptron(sgd(0.05), depth=4, activation=nn.Tanh)
    for index in (2, 4):
        model.encoder[index].bias.copy_(6.0 * torch.randn(64).sign())
    return Case(model, loader(*digits(), seed=seed))


@torch.no_grad()
def tanh_of_huge_weights(seed: int) -> Case:
    torch.manual_seed(seed)
    model = Perceptron(sgd(0.05), depth=4, activation=nn.Tanh)
    for index in (2, 4, 6):
        model.encoder[index].weight *= 40
    return Case(model, loader(*digits(), seed=seed))


class Dropped(Perceptron):
    """Drops 95 % of every layer. Its head begins at zero, as heads often do."""

    def __init__(self) -> None:
        super().__init__(sgd(0.01))
        pairs = zip(self.encoder[::2], self.encoder[1::2], strict=True)
        self.encoder = nn.Sequential(*(layer for pair in pairs for layer in (*pair, nn.Dropout(0.95))))
        nn.init.zeros_(self.head.weight)


def dropout_of_almost_all(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(Dropped(), loader(*digits(), seed=seed, batch=16))


class Experts(Learner):
    """Sends every sample to the expert that its router likes best, without a loss that balances them."""

    def __init__(self) -> None:
        super().__init__(adamw(3e-3))
        self.stem = stack(64, 64, 1)
        self.router = nn.Linear(64, 8)
        self.experts = nn.ModuleList(stack(64, 32, 1) for _ in range(8))
        self.head = nn.Linear(32, 10)
        with torch.no_grad():
            self.router.bias[3] = 4.0

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.stem(inputs)
        gates, chosen = self.router(hidden).softmax(1).max(1)
        mixed = torch.zeros(len(inputs), 32)
        for index in chosen.unique().tolist():
            rows = chosen == index
            mixed[rows] = gates[rows, None] * self.experts[index](hidden[rows])
        return self.head(mixed)

    def loss(self, batch: Any) -> Tensor:
        inputs, labels = batch
        return functional.cross_entropy(self(inputs), labels)


def one_expert(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(Experts(), loader(*digits(), seed=seed))


@torch.no_grad()
def one_massive_unit(seed: int) -> Case:
    torch.manual_seed(seed)
    model = Perceptron(adamw(1e-3))
    model.encoder[2].weight[5].abs_().mul_(1e4)
    model.encoder[4].weight[:, 5] *= 1e-4
    return Case(model, loader(*digits(), seed=seed))


TRAININGS = [
    Training(
        "one-head-dead",
        "activations",
        dead_head,
        200,
        "set",
        Expectation("pattern", (*DEAD, "UnitCollapse"), "blocks.1.attention.value*", "ActivationsDead"),
        "One of four attention heads has values of zero, and no gradient revives it.",
    ),
    Training(
        "relu-layer-dead",
        "activations",
        dead_relu_layer,
        200,
        "held",
        Expectation("pattern", (*DEAD, "ConstantOutput", "LossConstant"), "encoder.[45]*", "ActivationsDead"),
        "A bias of −20 in front of a ReLU lets nothing through a layer.",
    ),
    Training(
        "half-of-the-units-dead",
        "activations",
        half_of_the_units,
        200,
        "set",
        Expectation("pattern", DEAD, "encoder.[23]*", "ActivationsDead"),
        "A bias of −20 keeps half of the units of one layer at zero.",
    ),
    Training(
        "layer-dies-later",
        "activations",
        units_die_by_spike,
        200,
        "held",
        Expectation(
            "pattern", (*DEAD, "ConstantOutput", "LossConstant", "LossSpike"), "encoder.[23]*", "WeightsWritten", onset=80
        ),
        "At step 80 code lets the biases of one layer fall by 10, and nothing passes its ReLU any more.",
    ),
    Training(
        "tanh-of-huge-inputs",
        "activations",
        tanh_of_huge_inputs,
        200,
        "set",
        Expectation("pattern", ("SaturatedActivation", "InputNotNormalised"), "encoder.[01]*", "DataNotNormalised"),
        "Inputs of standard deviation 300 saturate a tanh.",
    ),
    Training(
        "tanh-of-huge-weights",
        "activations",
        tanh_of_huge_weights,
        200,
        "held",
        Expectation(
            "pattern",
            ("SaturatedActivation", "PoorInitialization", "OddInitialization"),
            "encoder.[2-7]*",
            "InitializationTooLarge",
        ),
        "Three layers have weights 40 times too large in front of a tanh.",
    ),
    Training(
        "tanh-of-huge-biases",
        "activations",
        tanh_of_huge_biases,
        200,
        "set",
        Expectation(
            "pattern",
            ("SaturatedActivation", "VanishingGradient", "LossConstant", "ConstantOutput"),
            "encoder.[0-5]*",
            "ActivationsSaturated",
        ),
        "Biases of ±6 hold two layers of tanh at their ends, whatever the input.",
    ),
    Training(
        "dropout-of-almost-all",
        "activations",
        dropout_of_almost_all,
        200,
        "held",
        Expectation("fact", ("DropoutTooHigh",), "encoder*", "DropoutTooHigh"),
        "A dropout of 0.95 follows each of three layers.",
    ),
    Training(
        "one-expert-takes-all",
        "activations",
        one_expert,
        200,
        "set",
        Expectation("pattern", ("UnitCollapse", "NoGradient", "UnchangedParameter"), "*r*", "UnitCollapsed"),
        "A router of eight experts sends every sample to one, and no loss balances them.",
    ),
    Training(
        "one-massive-unit",
        "activations",
        one_massive_unit,
        150,
        "held",
        Expectation(
            "pattern",
            ("MassiveActivation", "OddInitialization", "PoorInitialization"),
            "encoder.[2-4]*",
            "InitializationTooLarge",
        ),
        "One unit of a layer is 10 000 times as large as its neighbours; the next layer undoes it.",
    ),
]
