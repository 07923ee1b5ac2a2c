"""Faults of the backward pass: the loss is finite, and an operation gives the first bad gradient."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD

from galleries.recorder.fault import Case, Fault
from galleries.recorder.parts import FEATURES, WIDTH, Regressor, around, at, batches, chain, zero_row
from lightning_hooks.recorder.record import Verdict


class Distance(nn.Module):
    """The distance of each row from the origin, as the root of a sum of squares."""

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + hidden.square().sum(1, keepdim=True).sqrt()


def root_at_zero() -> Case:
    torch.manual_seed(0)
    return Case(Regressor(around(distance=Distance())), batches(at(5, zero_row)))


class Norm(nn.Module):
    """The norm of each row, written as a power."""

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + (hidden * hidden).sum(1, keepdim=True) ** 0.5


def norm_at_zero() -> Case:
    torch.manual_seed(0)
    return Case(Regressor(around(norm=Norm())), batches(at(4, zero_row)))


class SafeLog(nn.Module):
    """Takes a logarithm and then replaces it where its argument is 0: the forward pass is finite."""

    def forward(self, hidden: Tensor) -> Tensor:
        size = hidden.abs()
        return torch.where(size > 0, size.log(), 0.0)


def where_trap() -> Case:
    torch.manual_seed(0)
    return Case(Regressor(around(safe=SafeLog())), batches(at(5, zero_row)))


class Angle(nn.Module):
    """The arc cosine, whose slope at 1 is infinite."""

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden.clamp(-1.0, 1.0).acos()


class Offset(nn.Module):
    """Adds a trainable number, so that there is a gradient of the input."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(features))

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden * 0.1 + self.shift * 0.0


def acos_at_one() -> Case:
    torch.manual_seed(0)
    model = Regressor(chain(stem=Offset(FEATURES), angle=Angle(), head=nn.Linear(FEATURES, 1)))
    return Case(model, batches(at(5, lambda inputs, _: inputs[0].fill_(10.0))))


class Compress(nn.Module):
    """Compresses magnitudes by the power 0.3, as a spectrogram is compressed."""

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden.abs() ** 0.3


def power_at_zero() -> Case:
    torch.manual_seed(0)
    return Case(Regressor(around(compress=Compress())), batches(at(6, zero_row)))


class Reverse(torch.autograd.Function):
    """Returns its input, and divides its gradient by a size that may be 0."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor) -> Tensor:
        ctx.save_for_backward(hidden)
        return hidden.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (hidden,) = ctx.saved_tensors
        return grad / hidden.norm(dim=1, keepdim=True)


class Custom(nn.Module):
    """Calls an autograd function of the user's."""

    def forward(self, hidden: Tensor) -> Tensor:
        return Reverse.apply(hidden)


def custom_function() -> Case:
    torch.manual_seed(0)
    return Case(Regressor(around(custom=Custom())), batches(at(5, zero_row)))


class Amplified(Regressor):
    """A loss in float16 that is multiplied by 4000, without a scaler that would look at its gradients."""

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return (self(inputs) - targets).mean() * 4000.0


def half_gradient() -> Case:
    """The weight of the head is 1, and its gradient is the sum of hidden values over rows times 500."""
    torch.manual_seed(0)
    body = chain(stem=nn.Linear(FEATURES, WIDTH, bias=False), head=nn.Linear(WIDTH, 1, bias=False))
    with torch.no_grad():
        body.stem.weight.fill_(0.5)

    def spoil(index: int, inputs: Tensor, targets: Tensor) -> None:
        inputs.fill_(8.0 if index == 5 else 0.01)

    return Case(Amplified(body, partial(SGD, lr=1e-6)), batches(spoil), {"precision": "16-true"})


class Spectrum(nn.Module):
    """Projects on the eigenvectors of the second moments of its input."""

    def forward(self, hidden: Tensor) -> Tensor:
        moments = hidden.T @ hidden
        _, vectors = torch.linalg.eigh(moments)
        return hidden @ vectors


def equal_eigenvalues() -> Case:
    torch.manual_seed(0)
    return Case(Regressor(around(spectrum=Spectrum())), batches(at(4, lambda inputs, _: inputs.zero_())))


class Twice(nn.Module):
    """Measures two distances by one layer; the second is 0 in one row."""

    def __init__(self) -> None:
        super().__init__()
        self.distance = Distance()

    def forward(self, hidden: Tensor) -> Tensor:
        return self.distance(hidden + 1.0) + self.distance(hidden)


def second_call_in_backward() -> Case:
    torch.manual_seed(0)
    return Case(Regressor(around(pair=Twice()), partial(SGD, lr=1e-4)), batches(at(5, zero_row)))


BACKWARD: Any = {"verdict": Verdict.BACKWARD, "direction": "backward", "tensor": "grad"}

FAULTS = [
    Fault(
        "root-at-zero",
        "The slope of a root is infinite at 0; the root itself is 0.",
        root_at_zero,
        step=5,
        module="body.distance",
        operation="aten.div",
        node="SqrtBackward0",
        **BACKWARD,
    ),
    Fault(
        "norm-at-zero",
        "A norm is written as a power of 0.5, whose slope at 0 is infinite.",
        norm_at_zero,
        step=4,
        module="body.norm",
        operation="aten.pow",
        node="PowBackward0",
        **BACKWARD,
    ),
    Fault(
        "where-trap",
        "`torch.where` hides the logarithm of 0 in the forward pass, and multiplies its infinite slope by 0.",
        where_trap,
        step=5,
        module="body.safe",
        operation="aten.div",
        node="LogBackward0",
        **BACKWARD,
    ),
    Fault(
        "acos-at-one",
        "The slope of the arc cosine is infinite at 1.",
        acos_at_one,
        step=5,
        module="body.angle",
        operation="aten.rsqrt",
        node="AcosBackward0",
        **BACKWARD,
    ),
    Fault(
        "power-at-zero",
        "The slope of the power 0.3 is infinite at 0.",
        power_at_zero,
        step=6,
        module="body.compress",
        operation="aten.pow",
        node="PowBackward0",
        **BACKWARD,
    ),
    Fault(
        "custom-function",
        "The backward of an autograd function of the user's divides by a norm of 0.",
        custom_function,
        step=5,
        module="body.custom",
        operation="aten.div",
        node="ReverseBackward",
        **BACKWARD,
    ),
    Fault(
        "half-gradient-overflows",
        "A weight gradient exceeds 65 504 in float16, and no scaler looks at it.",
        half_gradient,
        step=5,
        module="body.head",
        operation="aten.mm",
        node="MmBackward0",
        **BACKWARD,
    ),
    Fault(
        "equal-eigenvalues",
        "Two eigenvalues are equal, and the gradient of their vectors divides by the difference.",
        equal_eigenvalues,
        step=4,
        module="body.spectrum",
        operation="aten.div_",
        node="LinalgEighBackward0",
        steps=5,
        **BACKWARD,
    ),
    Fault(
        "second-call-in-backward",
        "A distance is measured twice by one layer, and only the second is 0.",
        second_call_in_backward,
        step=5,
        module="body.pair.distance",
        call=1,
        operation="aten.div",
        node="SqrtBackward0",
        **BACKWARD,
    ),
]
