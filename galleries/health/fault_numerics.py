"""Faults of numbers: overflow, underflow, and what is no number."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch.plugins import MixedPrecision
from torch import Tensor, nn
from torch.nn import functional

from galleries.health.faulty_parts import Perceptron, adamw, digits, loader, sgd, stack
from galleries.health.training import Case, Expectation, Training


class NanPlanted(Perceptron):
    """Gets a NaN among the weights of one layer at step 60."""

    @torch.no_grad()
    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if self.global_step == 60:
            self.encoder[2].weight[7, 11] = float("nan")


def nan_planted(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(NanPlanted(), loader(*digits(), seed=seed))


class LogOfZero(Perceptron):
    """Keeps only the three likeliest classes from step 40 on, and takes the logarithm of what may be zero."""

    def loss(self, batch: Any) -> Tensor:
        inputs, labels = batch
        probabilities = self(inputs).softmax(1)
        if self.global_step >= 40:
            kept = probabilities >= probabilities.topk(3).values[:, 2:]
            probabilities = probabilities * kept
        return -probabilities.gather(1, labels[:, None]).log().mean()


def log_of_zero(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(LogOfZero(sgd(0.01)), loader(*digits(), seed=seed))


class RootOfZero(Perceptron):
    """Penalises distances between hidden states by a root, whose gradient at 0 is infinite, from step 30 on."""

    def loss(self, batch: Any) -> Tensor:
        inputs, labels = batch
        hidden = self.encoder(inputs)
        loss = functional.cross_entropy(self.head(hidden), labels)
        if self.global_step >= 30:
            distances = (hidden[:, None] - hidden).square().sum(2).sqrt()
            loss = loss + 1e-3 * distances.mean()
        return loss


def root_of_zero(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(RootOfZero(), loader(*digits(), seed=seed))


class HalfNorm(nn.Module):
    """Normalises by the root mean square in float16, whose largest number is 65504."""

    def forward(self, hidden: Tensor) -> Tensor:
        half = hidden.half()
        return (half / (half.square().sum(1, keepdim=True) + 1e-3).sqrt()).float() * hidden.shape[1] ** 0.5


class HalfOverflow(Perceptron):
    """Gets louder inputs from step 70 on, whose sums of squares exceed what float16 holds."""

    def __init__(self) -> None:
        super().__init__(adamw(1e-3))
        self.rescale = HalfNorm()

    def forward(self, inputs: Tensor) -> Tensor:
        louder = 200.0 if self.global_step >= 70 else 1.0
        return self.head(self.encoder(self.rescale(louder * inputs)))

    def loss(self, batch: Any) -> Tensor:
        inputs, labels = batch
        return functional.cross_entropy(self(inputs), labels)


def half_overflow(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(HalfOverflow(), loader(*digits(), seed=seed))


class HalfScores(Perceptron):
    """Computes similarities in float16 without dividing by the width, which overflow from step 50 on, as temperatures fall."""

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.encoder(inputs)
        scale = 1e4 if self.global_step >= 50 else 1.0
        scores = (scale * hidden).half() @ hidden.half().T
        return self.head(scores.softmax(-1).float() @ hidden + hidden)


def half_scores(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(HalfScores(), loader(*digits(), seed=seed))


class HalfLayers(nn.Module):
    """Layers that take their gradients in float16."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = stack(64, 64, 2).half()

    def forward(self, hidden: Tensor) -> Tensor:
        return self.layers(hidden.half()).float()


class Underflow(Perceptron):
    """Runs two layers in float16, and divides its loss by a million pixels without a loss scaler."""

    def __init__(self) -> None:
        super().__init__(sgd(0.1))
        self.middle = HalfLayers()

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.middle(self.encoder(inputs)))

    def loss(self, batch: Any) -> Tensor:
        return super().loss(batch) / 1e7


def half_underflow(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(Underflow(), loader(*digits(), seed=seed))


def updates_lost(seed: int) -> Case:
    torch.manual_seed(seed)
    inputs, labels = digits()
    return Case(Perceptron(sgd(1e-4)), loader(inputs.bfloat16(), labels, seed=seed), {"precision": "bf16-true"})


def half_adam(seed: int) -> Case:
    torch.manual_seed(seed)
    inputs, labels = digits()
    return Case(Perceptron(adamw(1e-4)), loader(inputs.half(), labels, seed=seed), {"precision": "16-true"})


class NeverScaled(Perceptron):
    """Takes a root of zero in one layer's penalty, so that a loss scaler skips every step."""

    def loss(self, batch: Any) -> Tensor:
        penalty = (self.encoder[2].weight * 0).square().sum().sqrt()
        return super().loss(batch) + penalty


def scaler_skips_for_ever(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(NeverScaled(), loader(*digits(), seed=seed), {"plugins": [MixedPrecision("16-mixed", "cpu")]})


TRAININGS = [
    Training(
        "nan-planted",
        "numerics",
        nan_planted,
        150,
        "set",
        Expectation("fact", ("NonFinite",), "encoder.2*", onset=60),
        "One weight of one layer becomes NaN at step 60.",
    ),
    Training(
        "log-of-zero",
        "numerics",
        log_of_zero,
        150,
        "held",
        Expectation("fact", ("NonFinite",), cause="NumericalRange", onset=40),
        "From step 40 on, the loss takes the logarithm of a probability of exactly 0.",
    ),
    Training(
        "root-of-zero",
        "numerics",
        root_of_zero,
        150,
        "set",
        Expectation("fact", ("NonFinite",), "encoder*", "NumericalRange", onset=30),
        "From step 30 on, the gradient of a root at 0 is not a number, while the loss still is one.",
    ),
    Training(
        "half-adam",
        "numerics",
        half_adam,
        40,
        "set",
        Expectation("fact", ("EpsilonVanishes",), "encoder*", "NumericalRange"),
        "The weights are float16, in which the eps of AdamW is 0, so that its first step divides by 0.",
    ),
    Training(
        "half-overflows-to-zero",
        "numerics",
        half_overflow,
        200,
        "held",
        Expectation(
            "pattern",
            ("ConstantOutput", "ScaleCollapse", "DeadLayer", "DeadUnits", "LossSpike"),
            cause="NumericalRange",
            onset=70,
        ),
        "From step 70 on, a norm in float16 overflows to infinity and returns zeros.",
    ),
    Training(
        "half-scores-overflow",
        "numerics",
        half_scores,
        150,
        "set",
        Expectation("fact", ("NonFinite",), "*", "NumericalRange", onset=50),
        "From step 50 on, scores in float16 exceed 65504, and their softmax is NaN.",
    ),
    Training(
        "half-underflows",
        "numerics",
        half_underflow,
        150,
        "held",
        Expectation(
            "pattern",
            ("Underflow", "NoGradient", "UnchangedParameter", "VanishingGradient", "LostUpdates", "UpdateTooSmall"),
            "[em][ni]*",
            "NumericalRange",
        ),
        "Gradients of two layers in float16 underflow to 0, since nothing scales the loss.",
    ),
    Training(
        "updates-lost",
        "numerics",
        updates_lost,
        150,
        "set",
        Expectation(
            "pattern", ("LostUpdates", "UpdateTooSmall", "UnchangedParameter", "LossConstant"), cause="LearningRateTooLow"
        ),
        "Weights are bfloat16, and most updates of SGD are too small to change one.",
    ),
    Training(
        "scaler-skips-for-ever",
        "numerics",
        scaler_skips_for_ever,
        150,
        "held",
        Expectation("fact", ("NonFinite", "UnchangedParameter"), "encoder.2*", "NumericalRange"),
        "A gradient that is NaN at any loss scale makes the loss scaler skip every step.",
    ),
]
