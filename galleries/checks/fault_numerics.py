"""Bugs of numbers: not finite, wrong derivatives, and randomness in evaluation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD

from galleries.checks.case import Expected, Fit, Pattern, Plain
from galleries.checks.parts import BATCH, CLASSES, FEATURES, Classifier, blobs, classified, fitted, mlp


class LogOfNegative(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale, self.head = nn.Linear(FEATURES, 24), nn.Linear(24, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.scale(inputs).log())


class Distances(nn.Module):
    """All distances between samples. The derivative of a root is infinite at 0, the distance of a sample to itself."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(FEATURES, 8)

    def forward(self, inputs: Tensor) -> Tensor:
        points = self.embed(inputs)
        return (points[:, None] - points[None]).square().sum(-1).sqrt()


class LengthOfZero(Classifier):
    """Divides by the length of a residual that starts at 0; the forward pass guards against it, the backward pass does not."""

    def __init__(self) -> None:
        super().__init__()
        self.residual = nn.Linear(FEATURES, 24, bias=False)
        nn.init.zeros_(self.residual.weight)

    def forward(self, inputs: Tensor) -> Tensor:
        residual = self.residual(inputs)
        length = residual.square().sum(1, keepdim=True).sqrt()
        return self.head(self.encoder(inputs) + residual / (length + 1))


class LearnedNoise(nn.Module):
    """Learns the variance of its noise. `where` does not keep the NaN of a root below 0 out of the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.variance = nn.Linear(FEATURES, CLASSES), nn.Parameter(torch.tensor(0.3))

    def forward(self, inputs: Tensor) -> Tensor:
        logits = self.layer(inputs)
        if self.training:
            deviation = torch.where(self.variance > 0, self.variance.sqrt(), torch.zeros(()))
            logits = logits + deviation * torch.randn_like(logits)
        return logits


class Square(torch.autograd.Function):
    """A square whose backward pass forgets the factor of 2."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor) -> Tensor:
        ctx.save_for_backward(inputs)
        return inputs**2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (inputs,) = ctx.saved_tensors
        return inputs * gradient


class Squares(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = nn.Linear(FEATURES, 24), nn.Linear(24, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(Square.apply(self.encoder(inputs)))


class AlwaysDrops(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = nn.Linear(FEATURES, 24), nn.Linear(24, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(functional.dropout(self.encoder(inputs).relu(), 0.2))


class Noisy(Classifier):
    """Adds noise to its inputs, in evaluation too."""

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs + 0.1 * torch.randn_like(inputs))


class MovesInEvaluation(nn.Module):
    """Centres features by a running mean that moves in evaluation, too."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = mlp()
        self.register_buffer("mean", torch.zeros(FEATURES))

    def forward(self, inputs: Tensor) -> Tensor:
        self.mean.lerp_(inputs.detach().mean(0), 0.1)
        return self.layers(inputs - self.mean)


def made(model: type[nn.Module], **changes: Any) -> Plain:
    torch.manual_seed(0)
    return classified(model(), **changes)


def distances() -> Plain:
    torch.manual_seed(0)
    inputs, labels = blobs()
    is_same = (labels[:, None] == labels).float()

    def loss(found: Tensor, wanted: Tensor) -> Tensor:
        return (found - (1 - wanted)).square().mean()

    return classified(Distances(), inputs, is_same, loss=loss)


def learned_noise() -> Plain:
    torch.manual_seed(0)
    model = LearnedNoise()
    optimizer = SGD(model.parameters(), lr=0.5)
    return classified(model, optimizer=optimizer, options={"checks": {"OverfitsBatch": True}})


def nan_in_batch() -> Fit:
    inputs, labels = blobs(BATCH)
    inputs[5, 2] = float("nan")
    return fitted(Classifier, inputs, labels)


FAMILY, FINITE, SAME = "numerics", ("NonFinite",), ("EvalIsDeterministic",)
PATTERNS = [
    Pattern(
        "log-of-negative",
        FAMILY,
        lambda: made(LogOfNegative),
        "A logarithm of negative numbers makes the first output NaN.",
        Expected(FINITE, "fail"),
    ),
    Pattern(
        "nan-in-batch",
        FAMILY,
        nan_in_batch,
        "One number of the batch is NaN.",
        Expected((*FINITE, "InputNotNormalised"), "fail"),
    ),
    Pattern(
        "root-of-zero",
        FAMILY,
        distances,
        "Outputs are finite; the derivative of the distance of a sample to itself is not.",
        Expected(FINITE, "fail", "embed*"),
        peer=7,
    ),
    Pattern(
        "length-of-zero",
        FAMILY,
        lambda: fitted(LengthOfZero),
        "The length of a vector that starts at 0 has a derivative that is not finite.",
        Expected(FINITE, "fail", "residual*"),
    ),
    Pattern(
        "nan-after-some-steps",
        FAMILY,
        learned_noise,
        "A variance is learned below 0; `where` hides the NaN from the forward pass alone.",
        Expected(("OverfitsBatch",), "fail"),
        peer=11,
    ),
    Pattern(
        "wrong-backward",
        FAMILY,
        lambda: made(Squares, options={"checks": {"GradientsAreRight": True}}, peer_options={"gradcheck": True}),
        "A function of its own has a backward pass that is wrong by a factor of 2.",
        Expected(("GradientsAreRight",), "fail", "encoder*"),
        peer=12,
    ),
    Pattern(
        "dropout-in-evaluation",
        FAMILY,
        lambda: made(AlwaysDrops),
        "`functional.dropout` is not told that the model is in evaluation.",
        Expected(SAME, "fail"),
        peer=9,
    ),
    Pattern(
        "noise-in-evaluation",
        FAMILY,
        lambda: fitted(Noisy),
        "Noise is added in evaluation too.",
        Expected(SAME, "warn"),
    ),
    Pattern(
        "moves-in-evaluation",
        FAMILY,
        lambda: made(MovesInEvaluation),
        "A running mean moves in evaluation too, so that outputs depend on what came before.",
        Expected(SAME, "fail"),
    ),
]
