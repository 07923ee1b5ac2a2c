"""A lookout compares each schedule of a Trainer with the fit before its first step, and says nothing of those that suit it."""

import math

import pytest
import torch
from torch.optim import lr_scheduler

from lightning_hooks.engine.lookouts.planned import Planned
from lightning_hooks.engine.lookouts.schedules import seen_of
from tests.callbacks.models import Net
from tests.engine.lookouts.loops import in_trainer

RULES = ["ScheduleAtOtherPace", "ScheduleEndsEarly", "WarmUpOutlastsFit"]
BATCHES = [(torch.randn(4, 6), 10 * torch.randn(4, 3).sign()) for _ in range(20)]  # the loss has little noise beside its level


class Scheduled(Net):
    """Has a schedule."""

    def __init__(self, make, interval, frequency=1):
        super().__init__()
        self.make_schedule, self.config = make, {"interval": interval, "frequency": frequency}

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), 0.01)
        return [optimizer], [{"scheduler": self.make_schedule(optimizer), **self.config}]


def said(folder, make, interval, epochs=5, frequency=1, **options):
    return in_trainer(folder, Scheduled(make, interval, frequency), BATCHES, RULES, max_epochs=epochs, **options)


def warm_cosine(total, warm):
    def factor(step):
        return step / warm if step < warm else 0.5 * (1 + math.cos(math.pi * min((step - warm) / (total - warm), 1.0)))

    return lambda optimizer: lr_scheduler.LambdaLR(optimizer, factor)


def cosine(total):
    return lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, total)


STEPS_BY_EPOCH = "{} ends after {} advances, which is the number of {} of this fit, but it is advanced once an epoch, 5 times."
EPOCHS_BY_STEP = (
    "CosineAnnealingLR ends after 5 advances, which is the number of epochs of this fit, but it is advanced after each step, "
    "100 times."
)


@pytest.mark.parametrize(
    ("make", "interval", "options", "message"),
    [
        (cosine(100), "epoch", {}, STEPS_BY_EPOCH.format("CosineAnnealingLR", 100, "steps")),
        (cosine(96), "epoch", {}, STEPS_BY_EPOCH.format("CosineAnnealingLR", 96, "steps")),
        (cosine(100), "epoch", {"accumulate_grad_batches": 4}, STEPS_BY_EPOCH.format("CosineAnnealingLR", 100, "batches")),
        (warm_cosine(100, 30), "epoch", {}, STEPS_BY_EPOCH.format("LambdaLR", 99, "steps")),
        (cosine(5), "step", {}, EPOCHS_BY_STEP),
        (
            lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=101),
            "epoch",
            {},
            STEPS_BY_EPOCH.format("OneCycleLR", 101, "steps"),
        ),
        (
            lambda optimizer: lr_scheduler.ExponentialLR(optimizer, 0.5),
            "step",
            {},
            "ExponentialLR multiplies the rate by 8.9e-16 within half of this fit, because it is advanced after each step, 100 "
            "times; with one advance an epoch it would end at 0.031 of the rate.",
        ),
    ],
    ids=["steps", "nearly", "batches", "function", "epochs", "one cycle", "exponent"],
)
def test_a_schedule_at_another_pace_is_told_before_the_first_update(tmp_path, make, interval, options, message):
    found = said(tmp_path, make, interval, **options)
    assert set(found) == {"ScheduleAtOtherPace"}
    finding = found["ScheduleAtOtherPace"]
    assert (finding.message, finding.first_step, finding.severity, finding.rows) == (message, 0, "warning", ("",))


def test_a_schedule_that_raises_an_error_before_the_end_is_told_long_before():
    make = lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=90)  # noqa: E731
    scheduler = Scheduled(make, "step").configure_optimizers()[1][0]["scheduler"]
    (sighting,) = seen_of(Planned(scheduler, False, 100, 100, 5))
    assert sighting.text == "OneCycleLR was made for 90 advances and raises an error after them; this fit makes 100"


@pytest.mark.parametrize(
    ("rule", "make", "message"),
    [
        (
            "ScheduleEndsEarly",
            lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / 8)),
            "LambdaLR has the rate above a tenth of its largest in the first 8 of the 100 advances of this fit, and then goes "
            "down to 0 of it.",
        ),
        (
            "ScheduleEndsEarly",
            lambda optimizer: lr_scheduler.StepLR(optimizer, 4, gamma=0.1),
            "StepLR has the rate above a tenth of its largest in the first 4 of the 100 advances of this fit, and then goes "
            "down to 1e-25 of it.",
        ),
        (
            "WarmUpOutlastsFit",
            lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 3000)),
            "LambdaLR still warms up when this fit ends, after 100 advances: the rate reaches 0.033 of what it would reach "
            "later.",
        ),
        (
            "WarmUpOutlastsFit",
            lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 1e9)),
            "LambdaLR still warms up when this fit ends, after 100 advances: the rate reaches less than 6.1e-05 of what it "
            "would reach later, since it would still rise after 1638400 advances.",
        ),
    ],
    ids=["function", "steps", "warm-up", "endless warm-up"],
)
def test_a_schedule_of_another_length_is_a_warning_if_the_loss_stands_still(tmp_path, rule, make, message):
    found = said(tmp_path, make, "step", max_steps=100, epochs=-1)
    assert [(name, each.severity, each.message) for name, each in found.items()] == [(rule, "warning", message)]
    assert found[rule].first_step == 0


def test_a_few_steps_of_a_long_schedule_are_a_note(tmp_path):
    make = lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 3000))  # noqa: E731
    found = said(tmp_path, make, "step", max_steps=20, epochs=-1)
    assert found["WarmUpOutlastsFit"].severity == "info"


@pytest.mark.parametrize(
    ("make", "interval", "options"),
    [
        (cosine(100), "step", {}),
        (cosine(25), "step", {"accumulate_grad_batches": 4}),
        (cosine(5), "epoch", {}),
        (cosine(50), "epoch", {}),
        (cosine(60), "step", {}),
        (cosine(20), "step", {"frequency": 5}),
        (warm_cosine(100, 10), "step", {}),
        (warm_cosine(120, 10), "step", {}),
        (lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=100), "step", {}),
        (lambda optimizer: lr_scheduler.StepLR(optimizer, 30), "step", {}),
        (lambda optimizer: lr_scheduler.StepLR(optimizer, 30), "epoch", {}),
        (lambda optimizer: lr_scheduler.MultiStepLR(optimizer, [3, 4]), "epoch", {}),
        (lambda optimizer: lr_scheduler.ExponentialLR(optimizer, 0.97), "step", {}),
        (lambda optimizer: lr_scheduler.LinearLR(optimizer, 0.01, total_iters=10), "step", {}),
        (lambda optimizer: lr_scheduler.LinearLR(optimizer, 0.1, total_iters=5), "step", {}),
        (lambda optimizer: lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 5), "step", {}),
        (lambda optimizer: lr_scheduler.CyclicLR(optimizer, 0.001, 0.1, step_size_up=10), "step", {}),
        (lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: 1 / math.sqrt(max(step, 10))), "step", {}),
        (cosine(5), "step", {"max_steps": 100, "epochs": -1}),
        (cosine(100), "epoch", {"epochs": -1, "max_steps": 7}),
    ],
)
def test_a_schedule_that_suits_the_fit_is_no_finding(tmp_path, make, interval, options):
    assert said(tmp_path, make, interval, **options) == {}


class Own(Scheduled):
    """Advances its schedule itself."""

    def lr_scheduler_step(self, scheduler, metric):
        scheduler.step()


def test_a_schedule_that_the_module_advances_is_left_alone(tmp_path):
    assert in_trainer(tmp_path, Own(cosine(100), "epoch"), BATCHES, RULES, max_epochs=5) == {}
