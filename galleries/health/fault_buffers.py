"""Faults of buffers: running statistics that move where nothing is to move, and copies that do not follow their model."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from galleries.health.faulty_parts import Convnet, Learner, Perceptron, adamw, digits, images, loader
from galleries.health.healthy_rl import Dqn
from galleries.health.training import Case, Expectation, Training

PRETRAINED = 100
"""The number of batches that a pretrained encoder has seen."""


def encoder() -> nn.Sequential:
    """Two layers with norms that have learned digits with much noise."""
    layers = [(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU()) for _ in range(2)]
    net = nn.Sequential(*(each for layer in layers for each in layer))
    head, (pixels, labels) = nn.Linear(64, 10), digits()
    optimizer = torch.optim.AdamW([*net.parameters(), *head.parameters()], lr=2e-3)
    for _ in range(PRETRAINED):
        chosen = torch.randint(len(pixels), (64,))
        loss = functional.cross_entropy(head(net(pixels[chosen] + torch.randn(64, 64))), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    optimizer.zero_grad()
    return net


class BackInTraining(Perceptron):
    """Trains a head on a frozen encoder, and calls `train()` after an evaluation of its own at step 40."""

    def __init__(self) -> None:
        super().__init__(adamw(1e-2))
        self.encoder, self.head = encoder().requires_grad_(False).eval(), nn.Linear(64, 10)

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if self.global_step == 40:
            self.train()


def back_in_training(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(BackInTraining(), loader(*digits(), seed=seed))


class Placed(nn.Module):
    """Gives each pixel a number that is learned for its place, which a table of integers looks up."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = nn.Parameter(torch.zeros(64))
        self.register_buffer("index", torch.arange(64).flip(0))

    def forward(self, pixels: Tensor) -> Tensor:
        return pixels + self.numbers[self.get_buffer("index")]


class Network(nn.Module):
    """A perceptron with a norm, behind numbers of places."""

    def __init__(self) -> None:
        super().__init__()
        self.places, self.first, self.norm, self.last = Placed(), nn.Linear(64, 64), nn.BatchNorm1d(64), nn.Linear(64, 10)

    def forward(self, pixels: Tensor) -> Tensor:
        return self.last(self.norm(self.first(self.places(pixels))).relu())


class Averaged(Learner):
    """Keeps a moving average of its network: of its whole state, or of its parameters alone."""

    def __init__(self, with_buffers: bool) -> None:
        super().__init__(adamw(3e-3))
        self.network = Network()
        self.averages = [deepcopy(self.network)]
        self.with_buffers = with_buffers

    def forward(self, pixels: Tensor) -> Tensor:
        return self.network(pixels)

    @torch.no_grad()
    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        (average,) = self.averages
        sources = self.network.state_dict() if self.with_buffers else dict(self.network.named_parameters())
        own = average.state_dict()
        for name, value in sources.items():
            own[name].copy_(0.95 * own[name] + 0.05 * value)


def average_of_integers(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(Averaged(with_buffers=True), loader(*digits(), seed=seed))


def average_without_statistics(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(Averaged(with_buffers=False), loader(*digits(), seed=seed))


class Lagging(Perceptron):
    """Averages its weights with a decay that is meant for a million steps."""

    def __init__(self) -> None:
        super().__init__(adamw(3e-3))
        self.averages = [deepcopy(self.encoder)]

    @torch.no_grad()
    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        for own, value in zip(self.averages[0].parameters(), self.encoder.parameters(), strict=True):
            own.lerp_(value, 1e-4)


def average_lags(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(Lagging(), loader(*digits(), seed=seed))


class OfLastBatch(Convnet):
    """Has the momentum of another library in its norms, and keeps which share of earlier statistics each batch leaves."""

    def __init__(self) -> None:
        super().__init__(adamw(3e-3), momentum=0.95)
        self.shares: list[float] = []

    def loss(self, batch: Any) -> Tensor:
        convolution, norm = self.features[0], self.features[1]
        before = norm.running_mean.clone()
        loss = super().loss(batch)
        with torch.no_grad():
            mean = functional.conv2d(batch[0], convolution.weight, convolution.bias, padding=1).mean((0, 2, 3))
            self.shares.append(float((norm.running_mean - mean).norm() / (before - mean).norm()))
        return loss


def statistics_of_last_batch(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(OfLastBatch(), loader(*images(), seed=seed))


class NeverSynchronised(Dqn):
    """Counts steps of the optimizer by a number that stays 0, so that the target is never copied."""

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """The copy of the base class is left out."""


def target_never_synchronised(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(NeverSynchronised(), loader(torch.arange(64), seed=seed, batch=1, shuffle=False))


class Distilled(Perceptron):
    """Learns from a teacher in evaluation mode, through which gradients flow too."""

    def __init__(self) -> None:
        super().__init__(adamw(1e-3))
        self.teacher = nn.Sequential(encoder(), nn.Linear(64, 10)).eval()

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        self.teacher.eval()

    def loss(self, batch: Any) -> Tensor:
        inputs, _ = batch
        return functional.mse_loss(self(inputs), self.teacher(inputs))


def teacher_trained(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(Distilled(), loader(*digits(), seed=seed))


TRAININGS = [
    Training(
        "target-never-synchronised",
        "structure",
        target_never_synchronised,
        400,
        "set",
        Expectation("pattern", ("TargetNeverSynchronised",), "target", onset=225),
        "The target network of a DQN is a copy of the untrained network to the end.",
    ),
    Training(
        "teacher-trained",
        "structure",
        teacher_trained,
        100,
        "held",
        Expectation("fact", ("TeacherTrained",), "teacher"),
        "The optimizer trains a teacher in evaluation mode, which is called without no_grad().",
    ),
    Training(
        "frozen-norms-back-in-training",
        "structure",
        back_in_training,
        150,
        "set",
        Expectation("fact", ("FrozenNormMoves",), "encoder*", onset=40),
        "From step 40 on, a call of train() lets the norms of a frozen encoder take each batch into their statistics.",
    ),
    Training(
        "average-of-integers",
        "structure",
        average_of_integers,
        150,
        "set",
        Expectation("fact", ("AveragedIntegers",), "network.places"),
        "A moving average of all buffers rounds a table of integers down, so that the copy looks up other places.",
    ),
    Training(
        "average-without-statistics",
        "structure",
        average_without_statistics,
        150,
        "set",
        Expectation("fact", ("AverageWithoutStatistics",), "network.norm", onset=10),
        "A moving average of the parameters keeps the running statistics of the untrained network.",
    ),
    Training(
        "average-lags",
        "structure",
        average_lags,
        150,
        "set",
        Expectation("fact", ("AverageLags",), onset=75),
        "A moving average with a decay of 0.9999 is still the random weights of the beginning when the fit ends.",
    ),
    Training(
        "statistics-of-last-batch",
        "structure",
        statistics_of_last_batch,
        150,
        "held",
        Expectation("fact", ("NormStatisticsOfOneBatch",), "features.*"),
        "Batch norms have a momentum of 0.95, so that running statistics are nearly those of the last batch.",
    ),
]
