"""Healthy trainings that meet NaN and infinity, of which there is no record."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from galleries.recorder.fault import Case, Fault
from galleries.recorder.parts import FEATURES, WIDTH, Regressor, around, at, batches, chain, zero_row
from galleries.recorder.scaler_faults import manual_scaler, scale_search


class Causal(nn.Module):
    """Attends from each row to itself and those before it; its mask is a buffer of −∞."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(FEATURES, WIDTH), nn.Linear(FEATURES, WIDTH)
        self.register_buffer("mask", torch.full((8, 8), float("-inf")).triu(1))

    def forward(self, inputs: Tensor) -> Tensor:
        scores = self.scores(inputs)
        return scores.softmax(-1) @ self.key(inputs)

    def scores(self, inputs: Tensor) -> Tensor:
        return self.query(inputs) @ self.key(inputs).T + self.mask


class Mask(nn.Module):
    """Masks scores by −∞: the output of a module is not finite."""

    def forward(self, scores: Tensor) -> Tensor:
        return scores.masked_fill(torch.ones_like(scores).triu(1).bool(), float("-inf"))


class Masked(nn.Module):
    """Attention whose masked scores are the output of a module."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.mask = nn.Linear(FEATURES, WIDTH), nn.Linear(FEATURES, WIDTH), Mask()

    def forward(self, inputs: Tensor) -> Tensor:
        return self.mask(self.query(inputs) @ self.key(inputs).T).softmax(-1) @ self.key(inputs)


def causal_mask() -> Case:
    torch.manual_seed(0)
    return Case(Regressor(chain(attention=Causal(), head=nn.Linear(WIDTH, 1))), batches())


def mask_module() -> Case:
    torch.manual_seed(0)
    return Case(Regressor(chain(attention=Masked(), head=nn.Linear(WIDTH, 1))), batches())


class LogOdds(nn.Module):
    """Returns its input, and log odds that are infinite for rows of zeros."""

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        return hidden, hidden.abs().sum(1).log()


class Auxiliary(nn.Module):
    """Takes the first of two outputs; the second is kept for a report."""

    def __init__(self) -> None:
        super().__init__()
        self.odds = LogOdds()
        self.last = torch.zeros(1)

    def forward(self, hidden: Tensor) -> Tensor:
        hidden, odds = self.odds(hidden)
        self.last = odds.detach()
        return hidden


def infinite_auxiliary() -> Case:
    torch.manual_seed(0)
    return Case(Regressor(around(auxiliary=Auxiliary())), batches(at(3, zero_row)))


class Score(nn.Module):
    """A diagnosis that divides by the number of positive targets."""

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs[targets > 0].mean()


class Reporting(Regressor):
    """Logs a number that is NaN in a batch without positive targets, and does not train on it."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__(body)
        self.score = Score()

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        outputs = self(inputs)
        self.log("score", self.score(outputs, targets).detach())
        return functional.mse_loss(outputs, targets)


def nan_in_an_unused_output() -> Case:
    torch.manual_seed(0)
    spoil = at(3, lambda _, targets: targets.abs_().neg_())
    return Case(Reporting(around(act=nn.Tanh())), batches(spoil))


class Impute(nn.Module):
    """Replaces missing values by a trainable vector."""

    def __init__(self) -> None:
        super().__init__()
        self.default = nn.Parameter(torch.zeros(FEATURES))

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.where(inputs.isnan(), self.default, inputs)


def missing_values() -> Case:
    torch.manual_seed(0)
    body = chain(impute=Impute(), stem=nn.Linear(FEATURES, WIDTH), act=nn.Tanh(), head=nn.Linear(WIDTH, 1))
    return Case(Regressor(body), batches(lambda index, inputs, _: inputs[index % 8, 1:3].fill_(float("nan"))))


class Censored(Regressor):
    """Targets that are not known are NaN, and their rows are not part of the loss."""

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        known = ~targets.isnan()
        return functional.mse_loss(self(inputs)[known], targets[known])


def missing_targets() -> Case:
    torch.manual_seed(0)
    return Case(Censored(around(act=nn.Tanh())), batches(lambda index, inputs, targets: targets[:3].fill_(float("nan"))))


class HalfNorm(nn.Module):
    """Divides by a norm in float16 that overflows: x/∞ is 0, which is finite."""

    def forward(self, hidden: Tensor) -> Tensor:
        size = hidden.detach().half().square().sum(1, keepdim=True).sqrt()
        return hidden / (1 + size.float())


def infinite_denominator() -> Case:
    torch.manual_seed(0)
    model = Regressor(chain(norm=HalfNorm(), head=nn.Linear(FEATURES, 1)))
    return Case(model, batches(at(3, lambda inputs, _: inputs.mul_(1000.0))))


class Smallest(nn.Module):
    """Keeps the smallest value that it has met in a buffer, which starts at infinity."""

    smallest: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("smallest", torch.tensor(float("inf")))
        self.register_buffer("reserve", torch.full((4,), float("nan")))

    def forward(self, hidden: Tensor) -> Tensor:
        with torch.no_grad():
            self.smallest.copy_(torch.minimum(self.smallest, hidden.min()))
        return hidden - self.smallest


def buffer_of_infinity() -> Case:
    torch.manual_seed(0)
    return Case(Regressor(around(smallest=Smallest())), batches())


class ImpossibleClasses(Regressor):
    """Gives classes that are impossible a score of −∞, which a cross entropy turns into a probability of 0."""

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        impossible = torch.tensor([False, False, True])
        scores = self(inputs).masked_fill(impossible, float("-inf"))
        return functional.cross_entropy(scores, (targets[:, 0] > 0).long())


def impossible_classes() -> Case:
    torch.manual_seed(0)
    body = chain(stem=nn.Linear(FEATURES, WIDTH), act=nn.Tanh(), head=nn.Linear(WIDTH, 3))
    return Case(ImpossibleClasses(body), batches())


class SafeRoot(nn.Module):
    """Replaces the argument before the root, not its result: neither pass meets an infinity."""

    def forward(self, hidden: Tensor) -> Tensor:
        size = hidden.square().sum(1, keepdim=True)
        is_zero = size == 0
        return hidden + torch.where(is_zero, 1.0, size).sqrt().masked_fill(is_zero, 0.0)


def safe_root() -> Case:
    torch.manual_seed(0)
    return Case(Regressor(around(root=SafeRoot())), batches(at(3, zero_row)))


class Uninitialised(nn.Module):
    """Writes into memory that `torch.empty` has not set, here NaN, before it is read."""

    def forward(self, hidden: Tensor) -> Tensor:
        result = torch.full_like(hidden, float("nan"))
        result[:, : WIDTH // 2] = hidden[:, : WIDTH // 2]
        result[:, WIDTH // 2 :] = hidden[:, WIDTH // 2 :].tanh()
        return result


def filled_with_nan_first() -> Case:
    torch.manual_seed(0)
    return Case(Regressor(around(parts=Uninitialised())), batches())


FAULTS: list[Any] = [
    Fault("causal-mask", "A buffer of −∞ is added to scores of attention.", causal_mask),
    Fault("mask-module", "A module returns masked scores of −∞, and a softmax reads them.", mask_module),
    Fault(
        "infinite-auxiliary-output", "A module returns an infinite second output, which is not trained on.", infinite_auxiliary
    ),
    Fault("nan-in-an-unused-output", "A module returns NaN, which is logged and not trained on.", nan_in_an_unused_output),
    Fault("missing-values", "Inputs are NaN where values are missing, and the model replaces them.", missing_values),
    Fault("missing-targets", "Targets are NaN where they are not known, and the loss leaves them out.", missing_targets),
    Fault("infinite-denominator", "A norm overflows in float16, and a number divided by infinity is 0.", infinite_denominator),
    Fault("buffer-of-infinity", "A buffer starts at infinity, another holds NaN.", buffer_of_infinity),
    Fault("impossible-classes", "Impossible classes have a score of −∞ in a cross entropy.", impossible_classes),
    Fault("safe-root", "A root of 0 is avoided in both passes.", safe_root),
    Fault("filled-with-nan-first", "A result is filled with NaN before it is written.", filled_with_nan_first),
    Fault("scale-search", "Gradients overflow until the loss scaler has found its scale.", scale_search, steps=20),
    Fault(
        "manual-scaler",
        "The same with a scaler of the training step's own, under manual optimization.",
        manual_scaler,
        steps=20,
        compiles=False,
    ),
]
