"""Trainings in mixed precision with a loss scaler: what the scaler handles, and what it cannot."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch.plugins import MixedPrecision
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn import functional

from galleries.recorder.fault import Case, Fault
from galleries.recorder.parts import FEATURES, WIDTH, Regressor, around, batches, chain
from lightning_hooks.recorder.record import Verdict


def mixed(scale: float) -> dict[str, Any]:
    """Arguments of a Trainer that trains in float16 on the CPU with a scaler.

    Args:
        scale: the first loss scale.
    """
    return {"plugins": [MixedPrecision("16-mixed", "cpu", GradScaler("cpu", init_scale=scale))]}


class FromTheFourth(Regressor):
    """Returns its outputs in float32, and a loss that is sound in the first four steps."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        inputs, targets = batch
        outputs = self(inputs).float()
        loss = functional.mse_loss(outputs, targets)
        return loss if batch_idx < 4 else self.worse(outputs, loss)

    def worse(self, outputs: Tensor, loss: Tensor) -> Tensor:
        raise NotImplementedError


class RootOfNothing(FromTheFourth):
    """Takes the root of 0, so that the gradient is NaN at any loss scale."""

    def worse(self, outputs: Tensor, loss: Tensor) -> Tensor:
        return loss + (outputs * 0.0).square().sum().sqrt()


class TooLarge(FromTheFourth):
    """Multiplies its loss by a billion, so that gradients exceed 65 504 at any loss scale."""

    def worse(self, outputs: Tensor, loss: Tensor) -> Tensor:
        return loss * 1e9


def skipped_for_ever() -> Case:
    torch.manual_seed(0)
    return Case(RootOfNothing(around(act=nn.Tanh())), batches(), mixed(2.0**16))


def too_large_for_any_scale() -> Case:
    torch.manual_seed(0)
    return Case(TooLarge(around(act=nn.Tanh())), batches(), mixed(2.0**10))


def scale_search() -> Case:
    """The first scale of 2**24 overflows, the scaler halves it a few times, and the training goes on."""
    torch.manual_seed(0)
    model = Regressor(chain(stem=nn.Linear(FEATURES, WIDTH), act=nn.Tanh(), head=nn.Linear(WIDTH, 1)))
    return Case(model, batches(), mixed(2.0**24))


class Manual(Regressor):
    """A loss scaler in the training step, under manual optimization."""

    def __init__(self, scale: float) -> None:
        super().__init__(chain(stem=nn.Linear(FEATURES, WIDTH), act=nn.Tanh(), head=nn.Linear(WIDTH, 1)))
        self.automatic_optimization = False
        self.scaler = GradScaler("cpu", init_scale=scale)

    def training_step(self, batch: Any, batch_idx: int) -> None:
        inputs, targets = batch
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = functional.mse_loss(self(inputs).float(), targets)
        self.scaler.scale(loss).backward()
        self.scaler.step(optimizer)
        self.scaler.update()


def manual_scaler() -> Case:
    torch.manual_seed(0)
    return Case(Manual(2.0**22), batches())


SCALED = ("scale-search", "manual-scaler")
"""Healthy trainings in which a scaler handles gradients that overflow."""

PATIENCE = 3
"""The halvings of the loss scale after a good step that may be the search of the scaler."""

FAULTS = [
    Fault(
        "skipped-for-ever",
        "A gradient is NaN at any loss scale, and the scaler skips every step.",
        skipped_for_ever,
        Verdict.BACKWARD,
        step=4 + PATIENCE,
        begins=4,
        direction="backward",
        tensor="grad",
        operation="aten.div",
        node="SqrtBackward0",
        steps=12,
    ),
    Fault(
        "too-large-for-any-scale",
        "Gradients overflow in float16 at any loss scale, and the scaler skips every step.",
        too_large_for_any_scale,
        Verdict.SCALER,
        step=4 + PATIENCE,
        begins=4,
        direction="backward",
        tensor="grad",
        operation="aten._to_copy",
        node="ToCopyBackward0",
        steps=12,
    ),
]
