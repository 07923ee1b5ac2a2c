"""Faults of initialisation: weights that begin too large, too small or all alike."""

from __future__ import annotations

import torch
from torch import nn

from galleries.health.faulty_parts import Language, Perceptron, adamw, digits, loader, sgd, tokens
from galleries.health.training import Case, Expectation, Training


@torch.no_grad()
def layer_times(factor: float, seed: int) -> Case:
    torch.manual_seed(seed)
    model = Perceptron(adamw(1e-3), depth=5)
    for layer in model.encoder[::2]:
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        layer.bias.zero_()
    model.encoder[4].weight *= factor
    return Case(model, loader(*digits(), seed=seed))


def layer_times_three(seed: int) -> Case:
    return layer_times(3.0, seed)


def layer_times_thirty(seed: int) -> Case:
    return layer_times(30.0, seed)


@torch.no_grad()
def all_times(factor: float, seed: int) -> Case:
    torch.manual_seed(seed)
    model = Perceptron(sgd(0.05, momentum=0.9), depth=5)
    for layer in (*model.encoder[::2], model.head):
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        layer.weight *= factor
        layer.bias.zero_()
    return Case(model, loader(*digits(), seed=seed))


def all_far_too_small(seed: int) -> Case:
    return all_times(0.02, seed)


def all_too_large(seed: int) -> Case:
    return all_times(8.0, seed)


@torch.no_grad()
def huge_embedding(seed: int) -> Case:
    torch.manual_seed(seed)
    model = Language(adamw(1e-3))
    model.embedding.weight.normal_(std=100.0)
    return Case(model, loader(*tokens(seed), seed=seed, batch=16))


def head_tied_to_embedding(seed: int) -> Case:
    torch.manual_seed(seed)
    model = Language(adamw(1e-3), vocabulary=64, width=64)
    nn.init.normal_(model.embedding.weight)
    model.head.weight = model.embedding.weight
    return Case(model, loader(*tokens(seed, vocabulary=64), seed=seed, batch=16))


@torch.no_grad()
def zeros(seed: int) -> Case:
    torch.manual_seed(seed)
    model = Perceptron(adamw(1e-3), depth=4)
    for index in (2, 4):
        model.encoder[index].weight.zero_()
        model.encoder[index].bias.zero_()
    return Case(model, loader(*digits(), seed=seed))


@torch.no_grad()
def all_alike(seed: int) -> Case:
    torch.manual_seed(seed)
    model = Perceptron(adamw(1e-3))
    model.encoder[2].weight.fill_(0.02)
    model.encoder[2].bias.zero_()
    model.encoder[4].weight.fill_(0.02)
    model.encoder[4].bias.zero_()
    return Case(model, loader(*digits(), seed=seed))


POOR = ("OddInitialization", "PoorInitialization")

TRAININGS = [
    Training(
        "layer-three-times-too-wide",
        "initialisation",
        layer_times_three,
        200,
        "set",
        Expectation("pattern", POOR, "encoder.[45]*", "InitializationTooLarge"),
        "The weights of one of five layers begin 3 times too large.",
    ),
    Training(
        "layer-thirty-times-too-wide",
        "initialisation",
        layer_times_thirty,
        200,
        "held",
        Expectation("pattern", (*POOR, "MassiveActivation", "ExplodingGradient"), "encoder.*", "InitializationTooLarge"),
        "The weights of one of five layers begin 30 times too large.",
    ),
    Training(
        "all-layers-far-too-small",
        "initialisation",
        all_far_too_small,
        200,
        "set",
        Expectation(
            "pattern",
            (*POOR, "VanishingGradient", "LossConstant", "ConstantOutput", "ScaleCollapse", "UpdateTooSmall"),
            cause="InitializationTooSmall",
        ),
        "The weights of all layers begin 50 times too small, so that nothing reaches the head.",
    ),
    Training(
        "all-layers-too-large",
        "initialisation",
        all_too_large,
        200,
        "held",
        Expectation(
            "pattern",
            (
                *POOR,
                "ExplodingGradient",
                "UpdateTooLarge",
                "LossDiverged",
                "LossSpike",
                "GradientSpike",
                "NonFinite",
                "DeadLayer",
                "DeadUnits",
                "MassiveActivation",
                "InitialLoss",
            ),
            cause="InitializationTooLarge",
        ),
        "The weights of all layers begin 8 times too large.",
    ),
    Training(
        "embedding-far-too-large",
        "initialisation",
        huge_embedding,
        200,
        "set",
        Expectation("pattern", (*POOR, "MassiveActivation"), "embedding*", "InitializationTooLarge"),
        "An embedding begins with a standard deviation of 100, and drowns positions and attention.",
    ),
    Training(
        "head-tied-to-embedding",
        "initialisation",
        head_tied_to_embedding,
        150,
        "set",
        Expectation("pattern", ("InitialLoss", *POOR), "head", "InitializationTooLarge"),
        "The head has the weight of an embedding that begins as N(0, 1).",
    ),
    Training(
        "layers-of-zeros",
        "initialisation",
        zeros,
        200,
        "held",
        Expectation(
            "pattern",
            (
                *POOR,
                "DeadLayer",
                "DeadUnits",
                "UnchangedParameter",
                "NoGradient",
                "VanishingGradient",
                "ConstantOutput",
                "LossConstant",
            ),
            "encoder.[0-5]*",
            "InitializationTooSmall",
        ),
        "Two layers begin at zero, which a ReLU keeps there.",
    ),
    Training(
        "units-all-alike",
        "initialisation",
        all_alike,
        200,
        "set",
        Expectation("pattern", POOR, "encoder.[2-4]*"),
        "All weights of two layers begin with the same number, so that all their units stay the same.",
    ),
]
