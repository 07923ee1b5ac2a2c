"""Faults of one call among several: repeated layers, micro-batches, views, checkpointing, two optimizers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from galleries.recorder.domain_faults import Energy
from galleries.recorder.fault import Case, Fault
from galleries.recorder.parts import FEATURES, WIDTH, Regressor, around, at, batches, chain, zero_row
from lightning_hooks.recorder.record import Verdict


class Recurrence(nn.Module):
    """Eighty steps of a linear recurrence, whose state grows by a constant factor."""

    def __init__(self, factor: float, steps: int) -> None:
        super().__init__()
        self.steps = steps
        self.cell = nn.Linear(WIDTH, WIDTH, bias=False)
        with torch.no_grad():
            self.cell.weight.copy_(factor * torch.eye(WIDTH))

    def forward(self, hidden: Tensor) -> Tensor:
        state = torch.tanh(hidden)
        for _ in range(self.steps):
            state = self.cell(state)
        return state * 0.0 + hidden


def recurrence_explodes() -> Case:
    """The state is 1 at the start, and 4.4 ** 60 is the first power above 3.4e38: at call 59."""
    torch.manual_seed(0)
    model = Regressor(
        chain(stem=nn.Linear(FEATURES, WIDTH, bias=False), recurrent=Recurrence(4.4, 64), head=nn.Linear(WIDTH, 1))
    )
    with torch.no_grad():
        model.body.stem.weight.fill_(1.0)
    return Case(model, batches(lambda index, inputs, _: inputs.fill_(0.0 if index < 2 else 10.0)))


class Thrice(nn.Module):
    """Applies one layer and a square root three times; the bias moves the third below zero."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = Root()

    def forward(self, hidden: Tensor) -> Tensor:
        first = self.shared(hidden.abs() + 2.0)
        second = self.shared(first + 1.0)
        return first + second + self.shared(hidden.abs() - 0.0 + hidden[:, :1].sign())


class Root(nn.Module):
    """The power 0.5, which is NaN below zero."""

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden**0.5


def third_call() -> Case:
    """The first feature is −0.1 in one row of the fifth batch, so that the third call reads a negative number."""
    torch.manual_seed(0)
    model = Regressor(chain(roots=Thrice(), head=nn.Linear(FEATURES, 1)))

    def spoil(index: int, inputs: Tensor, targets: Tensor) -> None:
        inputs.abs_().add_(0.5)
        if index == 4:
            inputs[3] = -0.1

    return Case(model, batches(spoil))


def second_micro_batch() -> Case:
    """Batch 9 is the second of the two batches of step 4."""
    torch.manual_seed(0)
    return Case(Regressor(around(energy=Energy())), batches(at(9, zero_row)), {"accumulate_grad_batches": 2})


class FirstColumn(nn.Module):
    """Takes the logarithm of the first column in place, through a view."""

    def forward(self, hidden: Tensor) -> Tensor:
        changed = hidden.abs() * 1.0
        changed[:, 0].log_()
        return changed


def log_in_place() -> Case:
    torch.manual_seed(0)
    return Case(Regressor(around(first=FirstColumn())), batches(at(5, zero_row)))


class Checkpointed(nn.Module):
    """Runs a block under activation checkpointing."""

    def __init__(self) -> None:
        super().__init__()
        self.block = chain(mix=nn.Linear(WIDTH, WIDTH, bias=False), energy=Energy())

    def forward(self, hidden: Tensor) -> Tensor:
        return checkpoint(self.block, hidden, use_reentrant=False)


def log_under_checkpointing() -> Case:
    torch.manual_seed(0)
    return Case(Regressor(around(outer=Checkpointed())), batches(at(5, zero_row)))


class Adversaries(Regressor):
    """Two optimizers under manual optimization; the loss of the second takes the logarithm of zero."""

    def __init__(self) -> None:
        super().__init__(around(act=nn.Tanh()))
        self.judge = around(energy=Energy())
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        inputs, targets = batch
        for optimizer, network in zip(self.optimizers(), (self.body, self.judge), strict=True):
            loss = functional.mse_loss(network(inputs), targets)
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()

    def configure_optimizers(self) -> Any:
        return [self.make_optimizer(self.body.parameters()), self.make_optimizer(self.judge.parameters())]


def second_optimizer() -> Case:
    """`global_step` counts the steps of both optimizers; the x-axis of `self.log` counts batches."""
    torch.manual_seed(0)
    return Case(Adversaries(), batches(at(3, zero_row)))


FORWARD: Any = {"verdict": Verdict.FORWARD, "direction": "forward"}
OUTPUT: Any = {**FORWARD, "tensor": "output"}

FAULTS = [
    Fault(
        "recurrence-explodes",
        "The state of a recurrent layer grows by 4.4 at each of 64 calls, and overflows at the sixtieth.",
        recurrence_explodes,
        step=2,
        module="body.recurrent.cell",
        call=59,
        operation="aten.mm",
        steps=5,
        **OUTPUT,
    ),
    Fault(
        "third-call",
        "A layer is called three times, and its third call takes a fractional power of a negative number.",
        third_call,
        step=4,
        module="body.roots.shared",
        call=2,
        operation="aten.pow",
        **OUTPUT,
    ),
    Fault(
        "second-micro-batch",
        "Two batches are accumulated, and the second of a step has a logarithm of zero.",
        second_micro_batch,
        step=4,
        micro_batch=1,
        module="body.energy",
        operation="aten.log",
        **OUTPUT,
    ),
    Fault(
        "log-in-place",
        "A layer takes the logarithm of a view of its output in place.",
        log_in_place,
        step=5,
        module="body.first",
        operation="aten.log_",
        **OUTPUT,
    ),
    Fault(
        "log-under-checkpointing",
        "A block under activation checkpointing takes the logarithm of zero.",
        log_under_checkpointing,
        step=5,
        module="body.outer.block.energy",
        operation="aten.log",
        **OUTPUT,
    ),
    Fault(
        "second-optimizer",
        "Of two optimizers under manual optimization, the network of the second takes the logarithm of zero.",
        second_optimizer,
        step=3,
        module="judge.energy",
        operation="aten.log",
        steps=14,
        **OUTPUT,
    ),
]
