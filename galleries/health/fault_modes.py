"""Faults of modes: a validation in training mode, and a dropout that is not told the mode."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from galleries.health.faulty_parts import Perceptron, adamw, digits, loader
from galleries.health.training import Case, Expectation, Training


class Validating(Perceptron):
    """Evaluates the same batches after each twentieth step, each of them twice."""

    def __init__(self) -> None:
        super().__init__(adamw(1e-3))
        self.drop = nn.Dropout(0.3)
        self.apart = 0.0
        pixels, _ = digits()
        self.batches = pixels[:256].chunk(4)

    def forward(self, inputs: Tensor) -> Tensor:
        scores: Tensor = self.head(self.drop(self.encoder(inputs)))
        return scores

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self.global_step % 20 == 0:
            self.validate()

    def validate(self) -> None:
        """The largest difference between two evaluations of a batch."""
        with torch.no_grad():
            self.apart = max(float((self(each) - self(each)).abs().max()) for each in self.batches)


class Forgetful(Validating):
    """Evaluates in evaluation mode, but drops elements by a function in each mode."""

    def forward(self, inputs: Tensor) -> Tensor:
        scores: Tensor = self.head(functional.dropout(self.encoder(inputs), 0.3))
        return scores

    def validate(self) -> None:
        self.eval()
        super().validate()
        self.train()


def validated_in_training_mode(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(Validating(), loader(*digits(), seed=seed))


def dropout_not_told_the_mode(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(Forgetful(), loader(*digits(), seed=seed))


TRAININGS = [
    Training(
        "validated-in-training-mode",
        "structure",
        validated_in_training_mode,
        100,
        "set",
        Expectation("fact", ("EvaluationInTrainingMode",), onset=20),
        "A validation disables gradients and forgets `eval()`, so that a dropout drops elements in it.",
    ),
    Training(
        "dropout-not-told-the-mode",
        "structure",
        dropout_not_told_the_mode,
        100,
        "set",
        Expectation("fact", ("DropoutInEvaluation",), onset=20),
        "`F.dropout` is not given `training=self.training`, so that it drops elements in the validation too.",
    ),
]
