"""Optimizers and schedules by name, with the range from which a rate is drawn."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from torch import nn, optim
from torch.optim.lr_scheduler import LambdaLR

from benchmarks.trainings.spec import Spec


class Kind(NamedTuple):
    """A kind of optimizer.

    Args:
        make: takes the parameters, `lr` and, if `decays`, `weight_decay`.
        usual: a rate that suits networks of a few thousand weights. Rates are drawn around it.
        decays: whether it takes a weight decay.
        whole: whether it needs the whole data set in each batch.
    """

    make: Callable[..., optim.Optimizer]
    usual: float
    decays: bool = True
    whole: bool = False


OPTIMIZERS: Final[Mapping[str, Kind]] = {
    "sgd": Kind(optim.SGD, 0.1),
    "momentum": Kind(partial(optim.SGD, momentum=0.9), 0.02),
    "nesterov": Kind(partial(optim.SGD, momentum=0.9, nesterov=True), 0.02),
    "adam": Kind(optim.Adam, 2e-3),
    "adamw": Kind(optim.AdamW, 2e-3),
    "amsgrad": Kind(partial(optim.Adam, amsgrad=True), 2e-3),
    "adamw-foreach": Kind(partial(optim.AdamW, foreach=True), 2e-3),
    "adamw-fused": Kind(partial(optim.AdamW, fused=True), 2e-3),
    "adamw-fast": Kind(partial(optim.AdamW, betas=(0.9, 0.95)), 2e-3),
    "nadam": Kind(optim.NAdam, 2e-3),
    "radam": Kind(optim.RAdam, 4e-3),
    "adamax": Kind(optim.Adamax, 4e-3),
    "rmsprop": Kind(optim.RMSprop, 1e-3),
    "adagrad": Kind(optim.Adagrad, 0.03),
    "rprop": Kind(optim.Rprop, 1e-3, decays=False, whole=True),
}


def optimizer_of(spec: Spec, parameters: Iterable[nn.Parameter]) -> optim.Optimizer:
    """The optimizer of a training."""
    kind = OPTIMIZERS[spec.optimizer]
    return kind.make(parameters, lr=spec.rate, **({"weight_decay": spec.weight_decay} if kind.decays else {}))


def _cosine(done: float) -> float:
    return 0.5 * (1 + math.cos(math.pi * done))


def _warm(done: float, warm: float, after: Callable[[float], float]) -> float:
    return (done + 1e-3) / warm if done < warm else after((done - warm) / (1 - warm))


SCHEDULES: Final[Mapping[str, Callable[[float], float]]] = {
    "constant": lambda done: 1.0,
    "cosine": _cosine,
    "linear": lambda done: 1 - done,
    "steps": lambda done: 0.1 ** (done >= 0.5) * 0.3 ** (done >= 0.75),
    "exponential": lambda done: 0.05**done,
    "root": lambda done: 1 / math.sqrt(1 + 20 * done),
    "warm": lambda done: _warm(done, 0.1, lambda _: 1.0),
    "warm-cosine": lambda done: _warm(done, 0.1, _cosine),
    "one-cycle": lambda done: 0.05 + _warm(done, 0.3, _cosine),
    "restarts": lambda done: 0.05 + 0.95 * _cosine(3 * done % 1),
}
"""The factor of the rate, by the share of the training that is done."""


def configured(spec: Spec, parameters: Iterable[nn.Parameter]) -> Any:
    """What `configure_optimizers` returns."""
    optimizer = optimizer_of(spec, parameters)
    if spec.schedule == "constant":
        return optimizer
    factor = SCHEDULES[spec.schedule]
    scheduler = LambdaLR(optimizer, lambda step: factor(min(step / spec.steps, 1.0)))
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}
