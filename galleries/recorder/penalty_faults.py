"""Faults of penalties in the training step: their gradients are not finite where a norm is 0."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from galleries.recorder.fault import Case, Fault
from galleries.recorder.parts import FEATURES, WIDTH, Regressor, around, batches, chain
from lightning_hooks.recorder.record import Verdict


class GradientPenalty(Regressor):
    """Penalises the norm of the gradient of the output with respect to the input, by a second backward pass."""

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        inputs = inputs.requires_grad_()
        outputs = self(inputs)
        (slopes,) = torch.autograd.grad(outputs.sum(), inputs, create_graph=True)
        return functional.mse_loss(outputs, targets) + (slopes.square().sum(1).sqrt() - 1.0).square().mean()


def gradient_penalty() -> Case:
    """A ReLU that is closed for a whole row passes no gradient to its input."""
    torch.manual_seed(0)
    body = chain(stem=nn.Linear(FEATURES, WIDTH), act=nn.ReLU(), head=nn.Linear(WIDTH, 1))
    with torch.no_grad():
        body.stem.weight.abs_()
        body.stem.bias.zero_()

    def spoil(index: int, inputs: Tensor, targets: Tensor) -> None:
        inputs.abs_()
        if index == 5:
            inputs[2].neg_().sub_(1.0)

    return Case(GradientPenalty(body), batches(spoil))


class PenaltyOnWeights(Regressor):
    """Penalises the norm of a weight that is 0 at the start, outside all modules."""

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        penalty = self.body.head.weight.square().sum().sqrt()
        return super().loss(inputs, targets) + 0.01 * penalty


def penalty_on_zero_weights() -> Case:
    torch.manual_seed(0)
    model = PenaltyOnWeights(around(act=nn.Tanh()))
    nn.init.zeros_(model.body.head.weight)
    return Case(model, batches())


BACKWARD: Any = {"verdict": Verdict.BACKWARD, "direction": "backward", "tensor": "grad"}

FAULTS = [
    Fault(
        "gradient-penalty",
        "A penalty on the norm of an input gradient, which is 0 in one row.",
        gradient_penalty,
        step=5,
        operation="aten.div",
        node="SqrtBackward0",
        compiles=False,
        **BACKWARD,
    ),
    Fault(
        "penalty-on-zero-weights",
        "The training step penalises the norm of a weight that is 0 at the start.",
        penalty_on_zero_weights,
        step=0,
        operation="aten.div",
        node="SqrtBackward0",
        **BACKWARD,
    ),
]
