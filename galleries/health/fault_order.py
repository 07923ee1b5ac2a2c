"""Faults of the order of a loop: gradients of another loss are left in, or clipped where that limits nothing."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from galleries.health.faulty_parts import Perceptron, digits, loader, sgd
from galleries.health.training import Case, Expectation, Training


class ClippedBefore(Perceptron):
    """Clips its gradients before the backward pass, when there are none."""

    def __init__(self) -> None:
        super().__init__(sgd(0.05))
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer = self.optimizers()
        optimizer.zero_grad()
        loss = self.loss(batch)
        self.log("train_loss", loss)
        nn.utils.clip_grad_norm_(self.parameters(), 0.1)
        self.manual_backward(loss)
        optimizer.step()


def clipped_before(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(ClippedBefore(), loader(*digits(), seed=seed))


class ClippedAfter(Perceptron):
    """Clips its gradients after the step, when they have been used."""

    def __init__(self) -> None:
        super().__init__(sgd(0.05))

    def on_train_batch_end(self, *args: Any) -> None:
        nn.utils.clip_grad_value_(self.parameters(), 1e-3)


def clipped_after(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(ClippedAfter(), loader(*digits(), seed=seed))


class Summed(Perceptron):
    """Accumulates the gradients of eight batches and does not divide their losses by eight."""

    def __init__(self) -> None:
        super().__init__(sgd(0.1, momentum=0.9))
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        loss = self.loss(batch)
        self.log("train_loss", loss)
        self.manual_backward(loss)
        if batch_idx % 8 == 7:
            self.optimizers().step()
            self.optimizers().zero_grad()


def summed(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(Summed(), loader(*digits(), seed=seed))


class Adversaries(LightningModule):
    """A generator and a discriminator of digits, whose gradients are cleared right after each step of the discriminator.

    So the backward pass of the generator, which passes through the discriminator, leaves gradients in it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.generator = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64))
        self.discriminator = nn.Sequential(nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
        self.left: list[float] = []  # the norms of the gradients that the discriminator has before its own backward pass

    def configure_optimizers(self) -> Any:
        parts = (self.generator, self.discriminator)
        return [torch.optim.Adam(each.parameters(), 1e-3, betas=(0.5, 0.999)) for each in parts]

    def against(self, inputs: Tensor, is_real: bool) -> Tensor:
        """How wrong the discriminator is, if the inputs are what they are said to be."""
        logits = self.discriminator(inputs)
        return nn.functional.binary_cross_entropy_with_logits(logits, torch.full_like(logits, float(is_real)))

    def training_step(self, batch: Any, batch_idx: int) -> None:
        generator, discriminator = self.optimizers()
        real = batch[0]
        fake = self.generator(torch.randn(len(real), 16))
        before = self.discriminator[0].weight.grad
        self.left.append(0.0 if before is None else float(before.norm()))
        loss = self.against(real, True) + self.against(fake.detach(), False)
        self.log("train_loss", loss)
        self.manual_backward(loss)
        discriminator.step()
        discriminator.zero_grad()
        generator.zero_grad()
        self.manual_backward(self.against(fake, True))
        generator.step()


def adversaries(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(Adversaries(), loader(*digits(), seed=seed))


TRAININGS = [
    Training(
        "accumulation-not-divided",
        "gradients",
        summed,
        120,
        "held",
        Expectation("pattern", ("AccumulationNotDivided", "LossDiverged", "LossConstant"), cause="AccumulationNotDivided"),
        "Gradients of eight batches are added up without being divided by eight.",
    ),
    Training(
        "clipped-before-backward",
        "gradients",
        clipped_before,
        60,
        "set",
        Expectation("fact", ("ClippingMisplaced",)),
        "Gradients are clipped before the backward pass, when there are none.",
    ),
    Training(
        "clipped-after-step",
        "gradients",
        clipped_after,
        60,
        "held",
        Expectation("fact", ("ClippingMisplaced",)),
        "Gradients are clipped after the step that has used them.",
    ),
    Training(
        "generator-leaves-gradients",
        "gradients",
        adversaries,
        100,
        "set",
        Expectation("fact", ("GradientsOfAnotherLoss",), "discriminator*", "GradientsMixed"),
        "A discriminator steps with the gradients that the loss of the generator has left in it.",
    ),
]
