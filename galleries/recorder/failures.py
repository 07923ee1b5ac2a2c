"""Trainings that an exception ends."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from galleries.recorder.fault import Case, Fault
from galleries.recorder.parts import FEATURES, WIDTH, Regressor, around, at, batches, chain
from lightning_hooks.recorder.record import Verdict


def one_row(index: int) -> Any:
    source = list(batches().dataset)
    source[index] = tuple(tensor[:1] for tensor in source[index])
    return torch.utils.data.DataLoader(source, batch_size=None)


def batch_norm_of_one_row() -> Case:
    torch.manual_seed(0)
    return Case(Regressor(around(norm=nn.BatchNorm1d(WIDTH))), one_row(5))


class Grid(nn.Module):
    """Arranges eight rows as a grid, whatever the size of the batch."""

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden.reshape(2, 4, WIDTH).mean(0).repeat(2, 1)


def last_batch_smaller() -> Case:
    torch.manual_seed(0)
    return Case(Regressor(around(grid=Grid())), one_row(4))


class Overwrites(nn.Module):
    """Changes in place what backward needs, where an input is negative."""

    def forward(self, hidden: Tensor) -> Tensor:
        gate = hidden.sigmoid()
        result = gate * gate
        if bool((hidden[:, 0] < -100).any()):
            gate[:, 0].zero_()
        return result


def overwritten_in_place() -> Case:
    torch.manual_seed(0)
    model = Regressor(around(gate=Overwrites()))
    with torch.no_grad():
        model.body.stem.weight.abs_()
    return Case(model, batches(at(5, lambda inputs, _: inputs[0].fill_(-1e4))))


class Refuses(torch.autograd.Function):
    """Raises in backward where its input is large."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor) -> Tensor:
        ctx.largest = float(hidden.detach().abs().max())
        return hidden.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        if ctx.largest > 1000:
            raise ArithmeticError(f"the solver did not converge: residual {ctx.largest:.3g}")
        return grad


class Solver(nn.Module):
    """A layer with a backward pass of its own."""

    def forward(self, hidden: Tensor) -> Tensor:
        return Refuses.apply(hidden)


def backward_raises() -> Case:
    torch.manual_seed(0)
    model = Regressor(chain(stem=nn.Linear(FEATURES, WIDTH), solver=Solver(), head=nn.Linear(WIDTH, 1)))
    return Case(model, batches(at(6, lambda inputs, _: inputs[0].fill_(1e5))))


EXCEPTION: Any = {"verdict": Verdict.EXCEPTION, "compiles": False}

FAULTS = [
    Fault(
        "batch-norm-of-one-row",
        "A batch norm gets one row and refuses it.",
        batch_norm_of_one_row,
        step=5,
        module="body.norm",
        direction="forward",
        failure="ValueError",
        **EXCEPTION,
    ),
    Fault(
        "last-batch-smaller",
        "A layer reshapes to eight rows, and the last batch has one.",
        last_batch_smaller,
        step=4,
        module="body.grid",
        direction="forward",
        failure="RuntimeError",
        **EXCEPTION,
    ),
    Fault(
        "overwritten-in-place",
        "A layer changes in place, through a view, what its backward pass needs.",
        overwritten_in_place,
        step=5,
        direction="backward",
        failure="RuntimeError",
        **EXCEPTION,
    ),
    Fault(
        "backward-raises",
        "The backward pass of an autograd function raises.",
        backward_raises,
        step=6,
        direction="backward",
        failure="ArithmeticError",
        **EXCEPTION,
    ),
]
