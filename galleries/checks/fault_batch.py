"""Bugs that mix the samples of a batch, or make them all the same."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from galleries.checks.case import Expected, Fit, Pattern, Plain
from galleries.checks.parts import (
    BATCH,
    CLASSES,
    FEATURES,
    Attention,
    Block,
    Classifier,
    Learner,
    classified,
    fitted,
    mlp,
    sequences,
    waves,
)


class AttendsOverBatch(nn.Module):
    """Attention that is given [batch, tokens, features] and expects [tokens, batch, features]."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.head = nn.MultiheadAttention(6, 2), nn.Linear(6, CLASSES)

    def forward(self, series: Tensor) -> Tensor:
        hidden, _ = self.attention(series, series, series)
        return self.head(hidden.mean(1))


class Recurrent(Learner):
    """An LSTM that is given [batch, time, features] and expects [time, batch, features]."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent, self.head = nn.LSTM(6, 16), nn.Linear(16, CLASSES)

    def forward(self, series: Tensor) -> Tensor:
        return self.head(self.recurrent(series)[0][:, -1])


class ViewForTranspose(nn.Module):
    """Meant to bring the time to the front."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent, self.head = nn.GRU(6, 16), nn.Linear(16, CLASSES)

    def forward(self, series: Tensor) -> Tensor:
        batch, time, features = series.shape
        hidden, _ = self.recurrent(series.view(time, batch, features))
        return self.head(hidden[-1])


class SoftmaxOverBatch(Attention):
    softmax_over = 0


class Attends(Learner):
    """A transformer block whose attention is normalised over the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.block, self.head = Block(6, SoftmaxOverBatch), nn.Linear(6, CLASSES)

    def forward(self, series: Tensor) -> Tensor:
        return self.head(self.block(series).mean(1))


class NormOverBatch(nn.Module):
    """Standardises features by the batch, in evaluation too."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = mlp()

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layers((inputs - inputs.mean(0)) / (inputs.std(0) + 1e-5))


class NormWholeTensor(Classifier):
    """Normalises the hidden layer by the mean and deviation of the whole tensor."""

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.encoder(inputs)
        return self.head((hidden - hidden.mean()) / hidden.std())


class PoolsOverBatch(nn.Module):
    """Averages over dimension 0, the batch, where the time was meant."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = nn.Linear(6, 16), nn.Linear(16, CLASSES)

    def forward(self, series: Tensor) -> Tensor:
        pooled = self.encoder(series).relu().mean(0).mean(0, keepdim=True)
        return self.head(pooled.expand(len(series), -1))


class PositionsOfSamples(nn.Module):
    """Adds an encoding of positions along dimension 0, the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(6, 24), nn.Linear(24, CLASSES)
        self.register_buffer("positions", torch.randn(50, 24))

    def forward(self, series: Tensor) -> Tensor:
        return self.head((self.embed(series) + self.positions[: len(series), None]).relu().mean(1))


class Broadcasts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = mlp(outputs=1)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layers(inputs)


def series(model: type[nn.Module]) -> Plain:
    torch.manual_seed(0)
    return classified(model(), *sequences())


def series_fit(module: type[Learner]) -> Fit:
    return fitted(module, *sequences(4 * BATCH))


def norm_over_batch() -> Plain:
    torch.manual_seed(0)
    return classified(NormOverBatch())


def broadcast_loss() -> Plain:
    torch.manual_seed(0)
    inputs, targets = waves()
    return classified(Broadcasts(), inputs, targets[:, 0], loss=lambda outputs, targets: ((outputs - targets) ** 2).mean())


class BroadcastRegression(Learner):
    """Compares outputs [N, 1] with targets [N]."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = mlp(FEATURES, 24, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layers(inputs)

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        inputs, targets = batch
        return functional.smooth_l1_loss(self(inputs), targets)


def broadcast_fit() -> Fit:
    inputs, targets = waves(4 * BATCH)
    return fitted(BroadcastRegression, inputs, targets[:, 0])


FAMILY, MIXED = "batch", Expected(("SamplesAreIndependent",), "fail")
PATTERNS = [
    Pattern(
        "attention-over-batch",
        FAMILY,
        lambda: series(AttendsOverBatch),
        "Attention expects the batch in dimension 1.",
        MIXED,
        peer=3,
    ),
    Pattern(
        "lstm-over-batch", FAMILY, lambda: series_fit(Recurrent), "An LSTM expects the batch in dimension 1.", MIXED, peer=3
    ),
    Pattern("view-for-transpose", FAMILY, lambda: series(ViewForTranspose), "`view` where `transpose` was meant.", MIXED),
    Pattern("softmax-over-batch", FAMILY, lambda: series_fit(Attends), "The softmax of attention is over the batch.", MIXED),
    Pattern("norm-over-batch", FAMILY, norm_over_batch, "Features are standardised by the batch, also in evaluation.", MIXED),
    Pattern(
        "norm-of-whole-tensor",
        FAMILY,
        lambda: fitted(NormWholeTensor),
        "A hidden layer is normalised by the mean and deviation of all samples.",
        MIXED,
    ),
    Pattern(
        "pool-over-batch",
        FAMILY,
        lambda: series(PoolsOverBatch),
        "The mean is over the batch, so that all samples have one output.",
        Expected(("ConstantOutput", "SamplesAreIndependent"), "fail"),
    ),
    Pattern(
        "positions-of-samples",
        FAMILY,
        lambda: series(PositionsOfSamples),
        "An encoding of positions is added along the batch, not along the time.",
        Expected(("SamplesAreIndependent",), "warn", "the model"),
    ),
    Pattern(
        "loss-broadcasts",
        FAMILY,
        broadcast_loss,
        "Outputs [N, 1] minus targets [N] make a table [N, N].",
        Expected(("LabelsFitHead", "SamplesAreIndependent"), "fail"),
    ),
    Pattern(
        "smooth-l1-broadcasts",
        FAMILY,
        broadcast_fit,
        "The same in `smooth_l1_loss` of a training step.",
        Expected(("LabelsFitHead", "SamplesAreIndependent"), "fail"),
    ),
]
