"""Faults of buffers: running statistics that move where nothing is to move, and copies that do not follow their model."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from galleries.health.faulty_parts import Perceptron, adamw, digits, loader
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


TRAININGS = [
    Training(
        "frozen-norms-back-in-training",
        "structure",
        back_in_training,
        150,
        "set",
        Expectation("fact", ("FrozenNormMoves",), "encoder*", onset=40),
        "From step 40 on, a call of train() lets the norms of a frozen encoder take each batch into their statistics.",
    ),
]
