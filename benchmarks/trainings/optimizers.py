"""Optimizers and schedules by name, with the range from which a rate is drawn."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from torch import Tensor, nn, optim
from torch.optim.lr_scheduler import LambdaLR

from benchmarks.trainings.spec import Spec


class Kind(NamedTuple):
    """A kind of optimizer.

    Args:
        make: takes the parameters, `lr` and, if `decays`, `weight_decay`.
        usual: a rate that suits networks of a few thousand weights. Rates are drawn around it.
        decays: whether it takes a weight decay.
        whole: whether it needs the whole data set in each batch.
        special: whether only families that name it draw it.
    """

    make: Callable[..., optim.Optimizer]
    usual: float
    decays: bool = True
    whole: bool = False
    special: bool = False


OPTIMIZERS: Final[Mapping[str, Kind]] = {
    "sgd": Kind(optim.SGD, 0.1),
    "momentum": Kind(partial(optim.SGD, momentum=0.9), 0.02),
    "nesterov": Kind(partial(optim.SGD, momentum=0.9, nesterov=True), 0.02),
    "momentum-foreach": Kind(partial(optim.SGD, momentum=0.9, foreach=True), 0.02),
    "momentum-fused": Kind(partial(optim.SGD, momentum=0.9, fused=True), 0.02),
    "asgd": Kind(optim.ASGD, 0.1),
    "adam": Kind(optim.Adam, 2e-3),
    "adam-fused": Kind(partial(optim.Adam, fused=True), 2e-3),
    "adam-half": Kind(partial(optim.Adam, betas=(0.5, 0.999)), 2e-3, special=True),
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
    "adadelta": Kind(optim.Adadelta, 2.0),
    "sparse-adam": Kind(optim.SparseAdam, 2e-3, decays=False, special=True),
    "muon": Kind(optim.Muon, 0.02, special=True),
    "rprop": Kind(optim.Rprop, 1e-3, decays=False, whole=True),
    "lbfgs": Kind(partial(optim.LBFGS, max_iter=4, line_search_fn="strong_wolfe"), 0.5, decays=False, whole=True),
}


def adapts(spec: Spec) -> bool:
    """Whether the length of a step does not depend on that of the gradient."""
    return "ada" in spec.optimizer or spec.optimizer == "rmsprop"


def is_manual(spec: Spec) -> bool:
    """Whether a training has two optimizers, so that Lightning leaves their steps to the module."""
    return spec.optimizer == "muon" or spec.family == "gan"


def has_sparse_tables(spec: Spec) -> bool:
    """Whether the gradients of embedding tables are sparse. Adagrad takes sparse gradients if it has no decay."""
    is_asked = dict(spec.shape).get("sparse", False) and spec.optimizer in ("adagrad", "sgd") and not spec.weight_decay
    return is_asked or spec.optimizer == "sparse-adam"


def optimizers_of(spec: Spec, parameters: Iterable[nn.Parameter]) -> list[optim.Optimizer]:
    """The optimizer of a training, or Muon for matrices beside AdamW for all other parameters."""
    kind, each = OPTIMIZERS[spec.optimizer], list(parameters)
    options = {"lr": spec.rate, **({"weight_decay": spec.weight_decay} if kind.decays else {})}
    if spec.optimizer == "muon":
        matrices: list[Tensor] = [parameter for parameter in each if parameter.dim() == 2]
        others = [parameter for parameter in each if parameter.dim() != 2]
        return [kind.make(matrices, **options), optim.AdamW(others, lr=0.1 * spec.rate, weight_decay=0.0)]
    if "groups" in spec.tricks:
        weights = {"params": [parameter for parameter in each if parameter.dim() > 1]}
        biases = {"params": [parameter for parameter in each if parameter.dim() <= 1], "weight_decay": 0.0}
        return [kind.make([group for group in (weights, biases) if group["params"]], **options)]
    return [kind.make(each, **options)]


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


def configured(spec: Spec, *held: Iterable[nn.Parameter]) -> Any:
    """What `configure_optimizers` returns.

    Args:
        spec: of the training.
        held: the parameters of each optimizer.
    """
    optimizers = [optimizer for parameters in held for optimizer in optimizers_of(spec, parameters)]
    if spec.schedule == "constant":
        return optimizers
    factor = SCHEDULES[spec.schedule]
    schedulers = [
        {"scheduler": LambdaLR(optimizer, lambda step: factor(min(step / spec.steps, 1.0))), "interval": "step"}
        for optimizer in optimizers
    ]
    return optimizers, schedulers
