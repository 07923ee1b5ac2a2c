"""Faults of the loss: what is computed of the outputs does not say what should be learned."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from galleries.health.faulty_parts import (
    Convnet,
    Learner,
    Perceptron,
    Regressor,
    adamw,
    digits,
    images,
    loader,
    sgd,
    stack,
    waves,
)
from galleries.health.training import Case, Expectation, Training


class SoftmaxTwice(Perceptron):
    """Gives probabilities to a loss that takes logits."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Sequential(self.head, nn.Softmax(dim=1))


def softmax_twice(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(SoftmaxTwice(), loader(*digits(), seed=seed))


class EachWithEach(Regressor):
    """Subtracts targets [n] from predictions [n, 1]."""

    def loss(self, batch: Any) -> Tensor:
        inputs, targets = batch
        return functional.mse_loss(*torch.broadcast_tensors(self(inputs), targets.flatten()))


def each_with_each(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(EachWithEach(adamw(1e-3)), loader(*waves(seed), seed=seed))


class SumForMean(Perceptron):
    """Adds up the losses of the samples."""

    def loss(self, batch: Any) -> Tensor:
        inputs, labels = batch
        return functional.cross_entropy(self(inputs), labels, reduction="sum")


def sum_for_mean(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(SumForMean(sgd(0.05)), loader(*digits(), seed=seed, batch=64))


def targets_times_million(seed: int) -> Case:
    torch.manual_seed(seed)
    inputs, targets = waves(seed)
    return Case(Regressor(adamw(1e-3)), loader(inputs, 1e6 * targets, seed=seed))


class NoNegatives(Learner):
    """Draws two views of a sample together, and pushes nothing apart."""

    def __init__(self) -> None:
        super().__init__(adamw(1e-2))
        self.encoder, self.projector = stack(64, 64, 2), nn.Linear(64, 16)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.projector(self.encoder(inputs))

    def loss(self, batch: Any) -> Tensor:
        inputs, _ = batch
        first, second = (self(inputs + 0.5 * torch.randn_like(inputs)) for _ in range(2))
        return functional.mse_loss(first, second)


def no_negatives(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(NoNegatives(), loader(*digits(), seed=seed))


class WrongDimension(Convnet):
    """Normalises over the batch where it should over the classes."""

    def loss(self, batch: Any) -> Tensor:
        inputs, labels = batch
        return functional.nll_loss(self(inputs).log_softmax(0), labels)


def wrong_dimension(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(WrongDimension(), loader(*images(), seed=seed))


class NegativeLoss(Perceptron):
    """Forgets the sign of the log-likelihood."""

    def loss(self, batch: Any) -> Tensor:
        inputs, labels = batch
        return self(inputs).log_softmax(1).gather(1, labels[:, None]).mean()


def sign_forgotten(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(NegativeLoss(adamw(1e-3)), loader(*digits(), seed=seed))


TRAININGS = [
    Training(
        "softmax-twice",
        "loss",
        softmax_twice,
        200,
        "set",
        Expectation("fact", ("ActivationBeforeLoss",), cause="LossGivenWrongNumbers"),
        "A softmax precedes cross entropy, so that the loss cannot fall below 1.46.",
    ),
    Training(
        "each-with-each",
        "loss",
        each_with_each,
        200,
        "set",
        Expectation("fact", ("LabelsFitHead",), cause="LossComparesAll"),
        "The loss subtracts targets [32] from predictions [32, 1], which compares each sample with all others.",
    ),
    Training(
        "sum-for-mean",
        "loss",
        sum_for_mean,
        200,
        "held",
        Expectation(
            "pattern",
            (
                "LossDiverged",
                "LossSpike",
                "ExplodingGradient",
                "GradientSpike",
                "UpdateTooLarge",
                "LossConstant",
                "DeadLayer",
                "DeadUnits",
            ),
            cause="LearningRateTooHigh",
        ),
        "The loss is a sum over 64 samples, at a rate of SGD that was meant for the mean.",
    ),
    Training(
        "targets-times-million",
        "loss",
        targets_times_million,
        200,
        "set",
        Expectation("pattern", ("TargetsOutOfReach", "LossConstant"), cause="DataNotNormalised"),
        "A small network with AdamW regresses targets of scale 1e6, which it cannot reach.",
    ),
    Training(
        "contrast-without-negatives",
        "loss",
        no_negatives,
        200,
        "held",
        Expectation("pattern", ("ConstantOutput", "DeadUnits", "DeadLayer", "VanishingGradient", "LossConstant")),
        "Two views are drawn together and nothing is pushed apart, so that every sample gets the same representation.",
    ),
    Training(
        "softmax-over-batch",
        "loss",
        wrong_dimension,
        200,
        "set",
        Expectation("fact", ("ActivationBeforeLoss",), cause="LossGivenWrongNumbers"),
        "The softmax of the loss normalises over the batch, not over the classes.",
    ),
    Training(
        "sign-forgotten",
        "loss",
        sign_forgotten,
        200,
        "held",
        Expectation("pattern", ("LossUnbounded", "WeightGrowth", "ExplodingGradient"), "*"),
        "The log-likelihood is minimised, so that the loss falls below zero without end.",
    ),
]
