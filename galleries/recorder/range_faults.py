"""Layers whose numbers leave the range of their format: float16, bfloat16, and exponentials."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD

from galleries.recorder.fault import Case, Fault
from galleries.recorder.parts import FEATURES, WIDTH, Regressor, at, batches, chain
from lightning_hooks.recorder.record import Verdict


class HalfSum(nn.Module):
    """Pools in float16."""

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden / (1 + hidden.abs().half().sum(1, keepdim=True).float()) - hidden.half().sum(1, keepdim=True).float()


def louder(times: float) -> Any:
    return lambda inputs, _: inputs.copy_(times)


def half_sum() -> Case:
    torch.manual_seed(0)
    model = Regressor(chain(stem=nn.Identity(), pool=HalfSum(), head=nn.Linear(FEATURES, 1)))
    return Case(model, batches(at(6, louder(30000.0))))


def half_matmul() -> Case:
    """All eight hidden values are near 1 in the fifth batch, and 8 times 16 000 is above 65 504."""
    torch.manual_seed(0)
    body = chain(stem=nn.Linear(FEATURES, WIDTH), act=nn.Tanh(), wide=nn.Linear(WIDTH, WIDTH), differ=Difference())
    with torch.no_grad():
        body.stem.weight.fill_(1.0)
        body.stem.bias.zero_()
        body.wide.weight.fill_(16000.0)
        body.wide.bias.zero_()
    return Case(
        Regressor(body, partial(SGD, lr=1e-6)),
        batches(lambda index, inputs, _: inputs.fill_(3.0 if index == 5 else 0.01)),
        {"precision": "16-true"},
    )


class Difference(nn.Module):
    """The difference of two columns, which is NaN for infinite ones and would be 0 otherwise."""

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden[:, :1] - hidden[:, 1:2]


class Scores(nn.Module):
    """Attention in float16 that does not divide its scores by the width."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(FEATURES, WIDTH), nn.Linear(FEATURES, WIDTH)

    def forward(self, inputs: Tensor) -> Tensor:
        scores = torch.bmm(self.query(inputs).half()[None], self.key(inputs).half().T[None])[0]
        return scores.softmax(-1).float() @ self.key(inputs)


def half_scores() -> Case:
    torch.manual_seed(0)
    model = Regressor(chain(attention=Scores(), head=nn.Linear(WIDTH, 1)))
    return Case(model, batches(at(4, louder(2000.0))))


class Exponential(nn.Module):
    """A rate that is the exponential of a score."""

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden.exp()


def exp_overflow() -> Case:
    torch.manual_seed(0)
    model = Regressor(chain(rate=Exponential(), head=nn.Linear(FEATURES, 1)))
    return Case(model, batches(at(5, lambda inputs, _: inputs[1].fill_(100.0))))


def exp_overflow_in_bfloat16() -> Case:
    torch.manual_seed(0)
    model = Regressor(chain(rate=Exponential(), head=nn.Linear(FEATURES, 1)))
    return Case(model, batches(at(5, lambda inputs, _: inputs[1].fill_(100.0))), {"precision": "bf16-true"})


FORWARD: Any = {"verdict": Verdict.FORWARD, "direction": "forward"}
OUTPUT: Any = {**FORWARD, "tensor": "output"}

FAULTS = [
    Fault(
        "half-sum-overflows",
        "Six numbers of 30 000 are added in float16.",
        half_sum,
        step=6,
        module="body.pool",
        operation="aten.sum",
        **OUTPUT,
    ),
    Fault(
        "half-matmul-overflows",
        "A layer in float16 has weights of 16 000, and a batch is 300 times as large as those before.",
        half_matmul,
        step=5,
        module="body.wide",
        operation="aten.addmm",
        **OUTPUT,
    ),
    Fault(
        "half-scores-overflow",
        "Scores of attention exceed 65 504 in float16, and their softmax is NaN.",
        half_scores,
        step=4,
        module="body.attention",
        operation="aten.bmm",
        **OUTPUT,
    ),
    Fault(
        "exp-overflows",
        "A score of 100 is too large for an exponential in float32.",
        exp_overflow,
        step=5,
        module="body.rate",
        operation="aten.exp",
        **OUTPUT,
    ),
    Fault(
        "exp-overflows-in-bfloat16",
        "The same in a model whose weights are bfloat16.",
        exp_overflow_in_bfloat16,
        step=5,
        module="body.rate",
        operation="aten.exp",
        **OUTPUT,
    ),
]
