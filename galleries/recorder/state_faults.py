"""Faults of data, weights and updates: the operations of the model are sound."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from lightning.pytorch import Callback
from torch import Tensor, nn
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import LambdaLR

from galleries.recorder.fault import Case, Fault
from galleries.recorder.parts import FEATURES, WIDTH, Regressor, around, at, batches, chain
from lightning_hooks.recorder.record import Verdict


def plain(**options: Any) -> Regressor:
    torch.manual_seed(0)
    return Regressor(chain(stem=nn.Linear(FEATURES, WIDTH), act=nn.Tanh(), head=nn.Linear(WIDTH, 1)), **options)


def set_input(row: int, column: int, value: float) -> Any:
    return lambda inputs, _: inputs.__setitem__((row, column), value)


def nan_in_the_batch() -> Case:
    return Case(plain(), batches(at(5, set_input(3, 4, float("nan")))))


def infinity_in_the_batch() -> Case:
    """A hyperbolic tangent would hide an infinite input, so the first layer is linear."""
    torch.manual_seed(0)
    return Case(Regressor(around(mix=nn.Linear(WIDTH, WIDTH))), batches(at(4, set_input(0, 2, float("inf")))))


def nan_in_the_targets() -> Case:
    return Case(plain(), batches(at(6, lambda _, targets: targets[1].fill_(float("nan")))))


class Set(Callback):
    """Changes the module before a batch, as other code of a training might."""

    def __init__(self, step: int, change: Any) -> None:
        self.step, self.change = step, change

    @torch.no_grad()
    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == self.step:
            self.change(trainer, pl_module)


def weight_set_to_nan() -> Case:
    return Case(plain(), batches(), callbacks=(Set(5, lambda _, module: module.body.head.weight[0, 3].fill_(float("nan"))),))


def weight_infinite_at_the_start() -> Case:
    """As an initialisation that divides by a fan of 0 gives it."""
    model = plain()
    with torch.no_grad():
        model.body.stem.weight[2].fill_(float("inf"))
    return Case(model, batches())


def spoil_second_moment(trainer: Any, module: Any) -> None:
    trainer.optimizers[0].state[module.body.head.weight]["exp_avg_sq"][0, 5] = -1.0


def negative_second_moment() -> Case:
    """As an optimizer state that was averaged or quantised gives it."""
    return Case(plain(optimizer=partial(Adam, lr=0.01)), batches(), callbacks=(Set(5, spoil_second_moment),))


def no_epsilon() -> Case:
    """The head's first weight has no gradient: its input is 0. Adam with an epsilon of 0 divides 0 by 0."""
    torch.manual_seed(0)
    body = chain(stem=nn.Linear(FEATURES, WIDTH), act=nn.ReLU(), head=nn.Linear(WIDTH, 1))
    with torch.no_grad():
        body.stem.bias[0] = -1000.0
    return Case(Regressor(body, partial(Adam, lr=1e-3, eps=0.0)), batches())


class Scheduled(Regressor):
    """A schedule that gives a wrong rate at one step.

    Args:
        optimizer: makes the optimizer.
        at: the step of the wrong rate.
        rate: the wrong factor of the rate.
    """

    def __init__(self, optimizer: Any, at: int, rate: float) -> None:
        super().__init__(chain(stem=nn.Linear(FEATURES, WIDTH), act=nn.Tanh(), head=nn.Linear(WIDTH, 1)), optimizer)
        self.at, self.rate = at, rate

    def configure_optimizers(self) -> Any:
        optimizer = self.make_optimizer(self.parameters())
        schedule = LambdaLR(optimizer, lambda step: self.rate if step == self.at else 1.0)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def rate_infinite() -> Case:
    torch.manual_seed(0)
    return Case(Scheduled(partial(SGD, lr=0.01), 5, float("inf")), batches())


def rate_nan() -> Case:
    torch.manual_seed(0)
    return Case(Scheduled(partial(SGD, lr=0.01), 4, float("nan")), batches())


def rate_infinite_of_adam() -> Case:
    torch.manual_seed(0)
    return Case(Scheduled(partial(Adam, lr=0.01, foreach=False), 5, float("inf")), batches())


def rate_far_too_high() -> Case:
    """All six weights start at 1 and are −2 times as large after each step; at step 60 the sum of squares overflows."""
    torch.manual_seed(0)
    model = Regressor(chain(head=nn.Linear(FEATURES, 1, bias=False)), partial(SGD, lr=0.25))
    nn.init.ones_(model.body.head.weight)

    def spoil(index: int, inputs: Tensor, targets: Tensor) -> None:
        inputs.fill_(1.0)
        targets.zero_()

    return Case(model, batches(spoil))


class Decayed(Regressor):
    """Has a gradient of 0, so that weight decay alone changes the weights."""

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return (self(inputs).tanh() * 0.0).mean()


def decay_overflows() -> Case:
    """Each update multiplies the weights, which start near 1e18, by −999; the seventh exceeds 3.4e38."""
    torch.manual_seed(0)
    model = Decayed(chain(head=nn.Linear(FEATURES, 1, bias=False)), partial(SGD, lr=1.0, weight_decay=1e3))
    with torch.no_grad():
        model.body.head.weight.copy_(torch.tensor([[1e18, 1e12, 1e12, 1e12, 1e12, 1e12]]))
    return Case(model, batches())


UPDATE: Any = {"verdict": Verdict.UPDATE, "direction": "update", "tensor": "param"}
BATCH: Any = {"verdict": Verdict.BATCH, "tensor": "batch"}
WEIGHTS: Any = {"verdict": Verdict.WEIGHTS, "tensor": "param"}

FAULTS = [
    Fault("nan-in-the-batch", "One input of a batch is NaN.", nan_in_the_batch, step=5, **BATCH),
    Fault("infinity-in-the-batch", "One input of a batch is infinite.", infinity_in_the_batch, step=4, **BATCH),
    Fault("nan-in-the-targets", "One target of a batch is NaN.", nan_in_the_targets, step=6, **BATCH),
    Fault(
        "weight-set-to-nan",
        "Other code sets an element of a weight to NaN between two steps.",
        weight_set_to_nan,
        step=5,
        module="body.head.weight",
        **WEIGHTS,
    ),
    Fault(
        "weight-infinite-at-the-start",
        "A row of a weight is infinite when the training starts.",
        weight_infinite_at_the_start,
        step=0,
        module="body.stem.weight",
        **WEIGHTS,
    ),
    Fault(
        "negative-second-moment",
        "A second moment of Adam is negative, and its root is NaN.",
        negative_second_moment,
        step=5,
        module="body.head.weight",
        operation="aten.sqrt",
        **UPDATE,
    ),
    Fault(
        "adam-without-epsilon",
        "Adam with an epsilon of 0 divides 0 by 0 where a weight has no gradient.",
        no_epsilon,
        step=0,
        module="body.stem.weight",
        operation="aten.addcdiv_",
        **UPDATE,
    ),
    Fault(
        "rate-infinite",
        "A schedule gives an infinite learning rate to SGD.",
        rate_infinite,
        step=5,
        module="body.stem.weight",
        operation="aten.add_",
        **UPDATE,
    ),
    Fault(
        "rate-nan",
        "A schedule gives a learning rate of NaN to SGD.",
        rate_nan,
        step=4,
        module="body.stem.weight",
        operation="aten.add_",
        **UPDATE,
    ),
    Fault(
        "rate-infinite-of-adam",
        "A schedule gives an infinite learning rate to Adam.",
        rate_infinite_of_adam,
        step=5,
        module="body.stem.weight",
        operation="aten.addcdiv_",
        **UPDATE,
    ),
    Fault(
        "decay-overflows",
        "Weight decay makes a weight larger at each step, until an update exceeds float32.",
        decay_overflows,
        step=6,
        module="body.head.weight",
        operation="aten.add",
        **UPDATE,
    ),
    Fault(
        "rate-far-too-high",
        "Weights grow at each step under a learning rate that is far too high, until the squared error overflows.",
        rate_far_too_high,
        verdict=Verdict.FORWARD,
        step=60,
        direction="forward",
        tensor="loss",
        operation="aten.mse_loss",
        steps=66,
    ),
]
