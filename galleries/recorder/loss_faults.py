"""Faults of the training step itself and of its loss."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from galleries.recorder.fault import Case, Fault
from galleries.recorder.parts import FEATURES, WIDTH, Regressor, around, at, batches, chain, zero_row
from lightning_hooks.recorder.record import Verdict


class Selected(Regressor):
    """The loss is the mean over rows whose target is positive."""

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        errors = (self(inputs) - targets).square()
        return errors[targets > 0].mean()


def mean_of_nothing() -> Case:
    torch.manual_seed(0)
    spoil = at(4, lambda _, targets: targets.abs_().neg_())
    return Case(Selected(around(act=nn.Tanh())), batches(spoil))


class Classifier(Regressor):
    """Three classes by the first feature; rows without a label have −100."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__(body)
        self.criterion = nn.CrossEntropyLoss()

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        labels = torch.bucketize(inputs[:, 0].contiguous(), torch.tensor([-0.5, 0.5]))
        return self.criterion(self(inputs), labels.where(targets[:, 0].abs() <= 1, -100))


def every_label_ignored() -> Case:
    torch.manual_seed(0)
    body = chain(stem=nn.Linear(FEATURES, WIDTH), act=nn.Tanh(), head=nn.Linear(WIDTH, 3))
    return Case(Classifier(body), batches(at(5, lambda _, targets: targets.fill_(9.0))))


class Likelihood(Regressor):
    """The logarithm of a softmax in two operations, in place of `log_softmax`."""

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return -(self(inputs).softmax(1) + 0.0)[:, 0].log().mean()


def log_of_a_softmax() -> Case:
    torch.manual_seed(0)
    body = chain(stem=nn.Linear(FEATURES, WIDTH), act=nn.ReLU(), head=nn.Linear(WIDTH, 3))
    return Case(Likelihood(body), batches(at(5, lambda inputs, _: inputs.mul_(3000.0))))


class CrossEntropyByHand(Regressor):
    """`-(y * log(p))`: a logarithm of zero that a mask then makes NaN."""

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        probabilities = functional.relu(self(inputs))
        return -(targets.sign().relu() * probabilities.log()).mean()


def zero_times_log_of_zero() -> Case:
    torch.manual_seed(0)
    model = CrossEntropyByHand(chain(stem=nn.Linear(FEATURES, 1, bias=False)))
    with torch.no_grad():
        model.body.stem.weight.fill_(1.0)

    def spoil(index: int, inputs: Tensor, targets: Tensor) -> None:
        inputs.abs_().add_(0.1)
        targets.fill_(1.0)
        if index == 3:
            zero_row(inputs, targets)
            targets[2] = 0.0

    return Case(model, batches(spoil))


FORWARD: Any = {"verdict": Verdict.FORWARD, "direction": "forward"}
OUTPUT: Any = {**FORWARD, "tensor": "output"}
LOSS: Any = {**FORWARD, "tensor": "loss"}

FAULTS = [
    Fault(
        "mean-of-nothing",
        "The training step takes the mean over rows of which a batch has none.",
        mean_of_nothing,
        step=4,
        operation="aten.mean",
        **LOSS,
    ),
    Fault(
        "every-label-ignored",
        "Cross entropy divides by the number of labels that it does not ignore: 0.",
        every_label_ignored,
        step=5,
        module="criterion",
        operation="aten.nll_loss_forward",
        **OUTPUT,
    ),
    Fault(
        "log-of-a-softmax",
        "A softmax underflows to 0, and the training step takes its logarithm.",
        log_of_a_softmax,
        step=5,
        operation="aten.log",
        **LOSS,
    ),
    Fault(
        "zero-times-log-of-zero",
        "The training step multiplies the logarithm of 0 by a target of 0.",
        zero_times_log_of_zero,
        step=3,
        operation="aten.log",
        **LOSS,
    ),
]
