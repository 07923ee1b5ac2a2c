"""Healthy classifiers: perceptrons, convolutional and recurrent networks, and losses with their proper last layer."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence
from torch.optim import SGD

from galleries.checks.case import Fit, Pattern, Plain
from galleries.checks.parts import (
    BATCH,
    CLASSES,
    FEATURES,
    Classifier,
    Learner,
    blobs,
    classified,
    fitted,
    images,
    mlp,
    sequences,
    tokens,
)


def perceptron() -> Plain:
    torch.manual_seed(0)
    return classified(mlp(depth=3))


def dropout() -> Plain:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(FEATURES, 32), nn.LayerNorm(32), nn.GELU(), nn.Dropout(0.3), nn.Linear(32, CLASSES))
    return classified(model, loss=nn.CrossEntropyLoss(label_smoothing=0.1))


def convolutions() -> Plain:
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.1)),
        *(nn.Flatten(), nn.Linear(128, CLASSES)),
    )
    return classified(model, *images(), optimizer=SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4))


class Residual(nn.Module):
    """A residual block whose last norm starts at 0, so that its convolutions have no gradient at the first step."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.conv2, self.norm2 = nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        nn.init.zeros_(self.norm2.weight)

    def forward(self, hidden: Tensor) -> Tensor:
        return functional.relu(hidden + self.norm2(self.conv2(self.norm1(self.conv1(hidden)).relu())))


class ResNet(Learner):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.blocks, self.head = nn.Sequential(Residual(), Residual()), nn.Linear(8, CLASSES)

    def forward(self, pixels: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(pixels)).mean((2, 3)))


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.recurrent, self.head = nn.LSTM(6, 16, 2, batch_first=True, dropout=0.1), nn.Linear(16, CLASSES)

    def forward(self, series: Tensor) -> Tensor:
        return self.head(self.recurrent(series)[0][:, -1])


class TimeFirst(nn.Module):
    """Takes [time, batch, features], as recurrent layers do by default."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent, self.head = nn.LSTM(6, 16), nn.Linear(16, CLASSES)

    def forward(self, series: Tensor) -> Tensor:
        return self.head(self.recurrent(series)[0][-1])


class PackedGru(Learner):
    """A GRU over sequences of different lengths, packed."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(16, 8, padding_idx=0)
        self.recurrent, self.head = nn.GRU(8, 16, batch_first=True, bidirectional=True), nn.Linear(32, CLASSES)

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(self.embedding(ids), lengths, batch_first=True, enforce_sorted=False)
        _, last = self.recurrent(packed)
        return self.head(torch.cat([*last], 1))

    def loss(self, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        ids, lengths, labels = batch
        return functional.cross_entropy(self(ids, lengths), labels)


def lstm() -> Plain:
    torch.manual_seed(0)
    return classified(Lstm(), *sequences())


def time_first() -> Plain:
    torch.manual_seed(0)
    series, labels = sequences()
    return classified(
        TimeFirst(),
        series.transpose(0, 1).contiguous(),
        labels,
        peer_options={"batch_dim": 1, "output_batch_dim": 0},
    )


def packed_gru() -> Fit:
    ids, lengths = tokens(4 * BATCH), 3 + torch.arange(4 * BATCH) % 8
    ids = ids * (torch.arange(ids.shape[1]) < lengths[:, None])
    return fitted(PackedGru, ids, lengths, torch.arange(4 * BATCH) % CLASSES, arguments=(0, 1))


class Text(nn.Module):
    """Averages embeddings over the tokens that a mask names."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(16, 24, padding_idx=0), nn.Linear(24, CLASSES)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        weight = mask.unsqueeze(-1).float()
        return self.head((self.embedding(ids) * weight).sum(1) / weight.sum(1))


def text() -> Plain:
    torch.manual_seed(0)
    ids = tokens()
    mask = (torch.arange(ids.shape[1]) < 3 + torch.arange(BATCH)[:, None] % 8).long()
    return classified(Text(), {"ids": ids, "mask": mask}, torch.arange(BATCH) % CLASSES)


def multi_label() -> Plain:
    torch.manual_seed(0)
    inputs, labels = blobs()
    marks = torch.stack([labels % 2, labels > 2, labels == 1], 1).float()
    return classified(mlp(outputs=3), inputs, marks, loss=nn.BCEWithLogitsLoss())


def rare_positives() -> Plain:
    """The bias of the head starts at the logit of how often the label is 1."""
    torch.manual_seed(0)
    inputs, labels = blobs()
    model = mlp(outputs=1)
    nn.init.normal_(model[-1].weight, std=0.01)
    nn.init.constant_(model[-1].bias, -math.log((1 - 0.05) / 0.05))
    is_rare = (torch.arange(BATCH) == 3).float()[:, None]
    return classified(model, inputs, is_rare, loss=functional.binary_cross_entropy_with_logits)


def probabilities() -> Plain:
    torch.manual_seed(0)
    inputs, labels = blobs()
    return classified(mlp(outputs=1).append(nn.Sigmoid()), inputs, (labels > 2).float()[:, None], loss=nn.BCELoss())


def log_probabilities() -> Plain:
    torch.manual_seed(0)
    return classified(mlp().append(nn.LogSoftmax(1)), loss=nn.NLLLoss())


class Summed(Classifier):
    """Sums the cross entropy of weighted classes over the batch, with a rate that fits."""

    rate = 1e-3

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        inputs, labels = batch
        weight = torch.linspace(0.5, 1.5, CLASSES)
        return functional.cross_entropy(self(inputs), labels, weight=weight, reduction="sum")


class SoftLabels(Classifier):
    """Learns mixed samples with mixed labels."""

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        inputs, labels = batch
        share, order = 0.7, torch.randperm(len(inputs))
        marks = functional.one_hot(labels, CLASSES).float()
        mixed, mixed_marks = (share * each + (1 - share) * each[order] for each in (inputs, marks))
        return functional.cross_entropy(self(mixed), mixed_marks)


def pretrained() -> Plain:
    """A classifier that has learned its data, and is trained further."""
    torch.manual_seed(0)
    model = mlp()
    inputs, labels = blobs()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    return classified(model, optimizer=optimizer)


FAMILY = "classifiers"
PATTERNS = [
    Pattern("perceptron", FAMILY, perceptron, "A perceptron of four layers."),
    Pattern("dropout-and-smoothing", FAMILY, dropout, "Layer norm, GELU, dropout and smoothed labels."),
    Pattern("convolutions", FAMILY, convolutions, "Convolutions with batch norms, learned with SGD."),
    Pattern(
        "residual-of-zero",
        FAMILY,
        lambda: fitted(ResNet, *images(4 * BATCH, channels=3)),
        "Residual blocks whose last norm starts at 0.",
    ),
    Pattern("lstm", FAMILY, lstm, "An LSTM of two layers."),
    Pattern("lstm-time-first", FAMILY, time_first, "An LSTM that is given the time in dimension 0, as it expects."),
    Pattern("gru-packed", FAMILY, packed_gru, "A GRU in two directions over packed sequences."),
    Pattern("text-with-mask", FAMILY, text, "Embeddings averaged over the tokens that are not padding."),
    Pattern("multi-label", FAMILY, multi_label, "Three questions by binary cross entropy with logits."),
    Pattern("rare-positives", FAMILY, rare_positives, "A head whose bias starts at the rarity of its label."),
    Pattern("sigmoid-and-bce", FAMILY, probabilities, "Probabilities with a loss for probabilities."),
    Pattern("log-softmax-and-nll", FAMILY, log_probabilities, "Log-probabilities with a loss for log-probabilities."),
    Pattern("weighted-sum", FAMILY, lambda: fitted(Summed), "The summed cross entropy of weighted classes."),
    Pattern("mixup", FAMILY, lambda: fitted(SoftLabels), "Mixed samples with mixed labels."),
    Pattern("pretrained", FAMILY, pretrained, "A classifier that has learned its batch already."),
]
