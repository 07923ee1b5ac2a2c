"""Layers whose operations leave their domain: logarithms and roots, division by zero, masks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from galleries.recorder.fault import Case, Fault
from galleries.recorder.parts import FEATURES, WIDTH, Regressor, around, at, batches, chain, zero_row
from lightning_hooks.recorder.record import Verdict


class Energy(nn.Module):
    """The logarithm of the energy of a row."""

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + hidden.square().sum(1, keepdim=True).log()


def log_of_zero() -> Case:
    torch.manual_seed(0)
    return Case(Regressor(around(energy=Energy())), batches(at(5, zero_row)))


class Penalty(nn.Module):
    """Adds minus infinity times a mask, as a penalty for padding."""

    def forward(self, hidden: Tensor) -> Tensor:
        padding = hidden.abs().sum(1) == 0
        scores = hidden.mean(1)
        if padding.any():
            scores = scores + padding.float() * float("-inf")
        return hidden * scores.softmax(0)[:, None]


def mask_times_infinity() -> Case:
    torch.manual_seed(0)
    return Case(Regressor(around(pool=Penalty())), batches(at(4, zero_row)))


class Attention(nn.Module):
    """Attends from each row to the rows whose first feature is positive."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(FEATURES, WIDTH), nn.Linear(FEATURES, WIDTH)

    def forward(self, inputs: Tensor) -> Tensor:
        scores = self.query(inputs) @ self.key(inputs).T
        scores = scores.masked_fill(inputs[:, 0] <= 0, float("-inf"))
        return scores.softmax(-1) @ self.key(inputs)


def softmax_of_nothing() -> Case:
    torch.manual_seed(0)
    spoil = at(3, lambda inputs, _: inputs[:, 0].abs_().neg_())
    return Case(Regressor(chain(attention=Attention(), head=nn.Linear(WIDTH, 1))), batches(spoil))


class Standardise(nn.Module):
    """Divides each row by its standard deviation, without an epsilon."""

    def forward(self, hidden: Tensor) -> Tensor:
        centred = hidden - hidden.mean(1, keepdim=True)
        return centred / centred.square().mean(1, keepdim=True).sqrt()


def variance_of_zero() -> Case:
    torch.manual_seed(0)
    model = Regressor(around(norm=Standardise()))
    return Case(model, batches(at(5, zero_row)))


class Whiten(nn.Module):
    """Divides each feature by its standard deviation over the batch."""

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden / (hidden.std(0) + 1e-5)


def deviation_of_one_row() -> Case:
    torch.manual_seed(0)
    source = batches()
    whole = list(source.dataset)
    whole[5] = (whole[5][0][:1], whole[5][1][:1])
    return Case(Regressor(around(whiten=Whiten())), DataLoader(whole, batch_size=None))


class Blend(nn.Module):
    """A fractional power of a difference that may be negative."""

    def forward(self, hidden: Tensor) -> Tensor:
        return (hidden + 10.0).pow(1.5)


def power_of_a_negative() -> Case:
    torch.manual_seed(0)
    model = Regressor(chain(blend=Blend(), head=nn.Linear(FEATURES, 1)))
    return Case(model, batches(at(5, lambda inputs, _: inputs[0].fill_(-20.0))))


class Arc(nn.Module):
    """The arc cosine of the cosine similarity with a prototype, without a clamp."""

    def forward(self, hidden: Tensor) -> Tensor:
        return (hidden * 0.05).acos()


def acos_above_one() -> Case:
    torch.manual_seed(0)
    model = Regressor(chain(angle=Arc(), head=nn.Linear(FEATURES, 1)))
    return Case(model, batches(at(5, lambda inputs, _: inputs[0].fill_(20.01))))


class Unweighted(nn.Module):
    """A weighted mean whose weights may sum to zero."""

    def forward(self, hidden: Tensor) -> Tensor:
        weights = hidden.abs().sum(1, keepdim=True)
        total = (weights * hidden).sum(1, keepdim=True) / weights
        return hidden + total


def division_by_no_weight() -> Case:
    torch.manual_seed(0)
    return Case(Regressor(around(mean=Unweighted())), batches(at(6, zero_row)))


FORWARD: Any = {"verdict": Verdict.FORWARD, "direction": "forward"}
OUTPUT: Any = {**FORWARD, "tensor": "output"}

FAULTS = [
    Fault(
        "log-of-zero",
        "A row of zeros has the energy 0, of which a layer takes the logarithm.",
        log_of_zero,
        step=5,
        module="body.energy",
        operation="aten.log",
        **OUTPUT,
    ),
    Fault(
        "mask-times-infinity",
        "A mask of zeros and ones is multiplied by −∞, and 0 · ∞ is NaN.",
        mask_times_infinity,
        step=4,
        module="body.pool",
        operation="aten.mul",
        **OUTPUT,
    ),
    Fault(
        "softmax-of-nothing",
        "All keys of a batch are masked, and the softmax of a row of −∞ is NaN.",
        softmax_of_nothing,
        step=3,
        module="body.attention",
        operation="aten._softmax",
        **OUTPUT,
    ),
    Fault(
        "variance-of-zero",
        "A row of equal numbers is divided by its standard deviation.",
        variance_of_zero,
        step=5,
        module="body.norm",
        operation="aten.div",
        **OUTPUT,
    ),
    Fault(
        "deviation-of-one-row",
        "The last batch has one row, and one number has no standard deviation.",
        deviation_of_one_row,
        step=5,
        module="body.whiten",
        operation="aten.std",
        **OUTPUT,
    ),
    Fault(
        "division-by-no-weight",
        "A weighted mean divides 0 by weights that sum to 0.",
        division_by_no_weight,
        step=6,
        module="body.mean",
        operation="aten.div",
        **OUTPUT,
    ),
    Fault(
        "power-of-a-negative",
        "A negative number to the power 1.5.",
        power_of_a_negative,
        step=5,
        module="body.blend",
        operation="aten.pow",
        **OUTPUT,
    ),
    Fault(
        "acos-above-one",
        "A cosine is larger than 1 by rounding.",
        acos_above_one,
        step=5,
        module="body.angle",
        operation="aten.acos",
        **OUTPUT,
    ),
]
