"""Healthy trainings of recurrent networks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from galleries.health.faulty_parts import Learner, adamw, digits, loader, sgd
from galleries.health.sound_parts import CHARACTERS, Classifier, characters, next_token_loss
from galleries.health.training import Case, Training


class Characters(Learner):
    """Predicts the next character with a recurrent network."""

    def __init__(self, rnn: nn.RNNBase, optimizer: Any) -> None:
        super().__init__(optimizer)
        self.embedding, self.rnn = nn.Embedding(CHARACTERS, rnn.input_size), rnn
        self.head = nn.Linear(rnn.hidden_size, CHARACTERS)

    def loss(self, batch: Any) -> Tensor:
        (sequence,) = batch
        return next_token_loss(self.head(self.rnn(self.embedding(sequence))[0]), sequence)


def tanh(seed: int) -> Case:
    torch.manual_seed(seed)
    module = Characters(nn.RNN(32, 96, batch_first=True), adamw(3e-3))
    return Case(module, loader(characters(seed), seed=seed), {"gradient_clip_val": 1.0})


def sgd_rate_20(seed: int) -> Case:
    torch.manual_seed(seed)
    module = Characters(nn.LSTM(64, 96, num_layers=2, batch_first=True, dropout=0.1), sgd(20.0))
    nn.init.uniform_(module.embedding.weight, -0.1, 0.1)
    nn.init.uniform_(module.head.weight, -0.1, 0.1)
    nn.init.zeros_(module.head.bias)
    return Case(module, loader(characters(seed), seed=seed, batch=20), {"gradient_clip_val": 0.25})


class Forecast(Learner):
    """Predicts the next value of a noisy sum of sines."""

    def __init__(self) -> None:
        super().__init__(adamw(5e-3))
        self.lstm, self.head = nn.LSTM(1, 48, num_layers=2, batch_first=True), nn.Linear(48, 1)

    def loss(self, batch: Any) -> Tensor:
        (series,) = batch
        return functional.mse_loss(self.head(self.lstm(series[:, :-1])[0]), series[:, 1:])


def forecast(seed: int) -> Case:
    torch.manual_seed(seed)
    source = Generator().manual_seed(seed)
    frequency = 0.1 + 0.6 * torch.rand(1024, 1, 2, generator=source)
    phase = 6.28 * torch.rand(1024, 1, 2, generator=source)
    series = torch.sin(frequency * torch.arange(32.0)[:, None] + phase).sum(2, keepdim=True)
    noise = 0.05 * torch.randn(series.shape, generator=source)
    return Case(Forecast(), loader(series + noise, seed=seed))


class Rows(Classifier):
    """Reads an image row by row with a bidirectional GRU."""

    def __init__(self) -> None:
        super().__init__(adamw(3e-3))
        self.gru, self.head = nn.GRU(8, 48, num_layers=2, batch_first=True, bidirectional=True), nn.Linear(96, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.gru(inputs)[0].mean(1))


def gru(seed: int) -> Case:
    torch.manual_seed(seed)
    pixels, labels = digits()
    return Case(Rows(), loader(pixels.view(-1, 8, 8), labels, seed=seed))


class Identity(Classifier):
    """Reads an image row by row, five times over, with ReLU and a state that starts as a sum of its inputs."""

    def __init__(self) -> None:
        super().__init__(adamw(1e-3))
        self.recurrent, self.head = nn.RNN(8, 64, batch_first=True, nonlinearity="relu"), nn.Linear(64, 10)
        nn.init.eye_(self.recurrent.weight_hh_l0)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.recurrent(inputs)[1][0])


def identity(seed: int) -> Case:
    torch.manual_seed(seed)
    pixels, labels = digits()
    return Case(Identity(), loader(pixels.view(-1, 8, 8).repeat(1, 5, 1), labels, seed=seed), {"gradient_clip_val": 1.0})


TRAININGS = [
    Training("rnn-tanh", "rnn", tanh, 250, "set", None, "A recurrent network with tanh learns characters, clipped."),
    Training("lstm-forecast", "rnn", forecast, 250, "held", None, "Two layers of LSTM forecast noisy sums of sines."),
    Training("gru-rows", "rnn", gru, 250, "set", None, "A bidirectional GRU reads digits row by row."),
    Training("rnn-identity", "rnn", identity, 250, "set", None, "A recurrent ReLU network starts as the identity, clipped."),
    Training("lstm-sgd-20", "rnn", sgd_rate_20, 300, "held", None, "An LSTM learns with a rate of 20, clipped at 0.25."),
]
