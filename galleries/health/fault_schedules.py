"""Faults of schedules of the learning rate: their length, and how often they are advanced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LinearLR, SequentialLR

from galleries.health.faulty_parts import Perceptron, digits, loader, sgd
from galleries.health.training import Case, Expectation, Training

_STEPS = 168
"""Three epochs of 56 batches."""


class Scheduled(Perceptron):
    """Has a schedule.

    Args:
        make: makes the schedule of an optimizer.
        interval: as of Lightning.
    """

    def __init__(self, make: Callable[[Any], Any], interval: str) -> None:
        super().__init__(sgd(0.05, momentum=0.9))
        self.make_schedule, self.interval = make, interval

    def configure_optimizers(self) -> Any:
        optimizer = self.make_optimizer(self.parameters())
        return [optimizer], [{"scheduler": self.make_schedule(optimizer), "interval": self.interval}]


def _warm_cosine(optimizer: Any) -> SequentialLR:
    """Rises in 20 advances and falls in the others of the fit."""
    warm = LinearLR(optimizer, 1e-4, 1.0, 20)
    return SequentialLR(optimizer, [warm, CosineAnnealingLR(optimizer, _STEPS - 20)], [20])


def schedule_by_epoch(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(Scheduled(_warm_cosine, "epoch"), loader(*digits(), seed=seed), {"max_epochs": 3})


def schedule_of_few_steps(seed: int) -> Case:
    torch.manual_seed(seed)
    module = Scheduled(lambda optimizer: LambdaLR(optimizer, lambda step: 0.3**step), "step")
    return Case(module, loader(*digits(), seed=seed))


def warm_up_without_end(seed: int) -> Case:
    torch.manual_seed(seed)
    module = Scheduled(lambda optimizer: LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 1e6)), "step")
    return Case(module, loader(*digits(), seed=seed))


class AdvancedEachBatch(Perceptron):
    """Advances a schedule that was made for steps after each batch, four of which make a step."""

    def configure_optimizers(self) -> Any:
        optimizer = self.make_optimizer(self.parameters())
        self.schedule = LambdaLR(optimizer, lambda step: max(0.0, 1 - step / 100))
        return optimizer

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.schedule.step()


def schedule_of_batches(seed: int) -> Case:
    torch.manual_seed(seed)
    module = AdvancedEachBatch(sgd(0.05, momentum=0.9))
    return Case(module, loader(*digits(), seed=seed), {"accumulate_grad_batches": 4})


TRAININGS = [
    Training(
        "schedule-by-epoch",
        "optimizer",
        schedule_by_epoch,
        _STEPS,
        "set",
        Expectation("fact", ("ScheduleAtOtherPace",), cause="ScheduleMismatch"),
        "A schedule that was made for the steps of the fit is advanced once an epoch, so that the rate stays near 0.",
    ),
    Training(
        "schedule-of-few-steps",
        "optimizer",
        schedule_of_few_steps,
        150,
        "set",
        Expectation("pattern", ("ScheduleEndsEarly", "LearningRateFallen"), cause="LearningRateTooLow"),
        "The rate is multiplied by 0.3 after each step, as by a schedule of epochs.",
    ),
    Training(
        "warm-up-without-end",
        "optimizer",
        warm_up_without_end,
        150,
        "set",
        Expectation("pattern", ("WarmUpOutlastsFit",), cause="LearningRateTooLow"),
        "The rate would rise for a million steps, of which the fit makes 150.",
    ),
    Training(
        "schedule-of-batches",
        "optimizer",
        schedule_of_batches,
        100,
        "set",
        Expectation("fact", ("ScheduleAdvancesEachBatch", "LearningRateZero"), cause="ScheduleMismatch", onset=25),
        "Four batches are added up for each step, and a schedule that was made for steps is advanced at each batch.",
    ),
]
"""The trainings of this file."""
