"""Faults of updates: steps that are too large, too small, or undone."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from galleries.health.faulty_parts import Convnet, Language, Perceptron, adamw, digits, images, loader, sgd, tokens
from galleries.health.training import Case, Expectation, Training

TOO_LARGE = (
    *("UpdateTooLarge", "LossDiverged", "LossSpike", "GradientSpike", "ExplodingGradient", "WeightGrowth", "LossConstant"),
    *("DeadLayer", "DeadUnits", "SaturatedActivation"),
)
"""What a learning rate that is too high may do."""

TOO_SMALL = ("UpdateTooSmall", "LostUpdates", "LossConstant", "UnchangedParameter", "SlowLearning")
"""What a learning rate that is too low may do."""


def rate_times_five(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(Language(adamw(5e-2)), loader(*tokens(seed), seed=seed, batch=16))


def rate_times_five_plain(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(Perceptron(sgd(0.5, momentum=0.9)), loader(*digits(), seed=seed))


def rate_times_hundred(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(Convnet(sgd(10.0, momentum=0.9)), loader(*images(), seed=seed))


def rate_far_too_low(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(Perceptron(adamw(1e-9)), loader(*digits(), seed=seed))


def rate_too_low_for_its_steps(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(Perceptron(adamw(4e-5)), loader(*digits(), seed=seed))


class Scheduled(Perceptron):
    """Follows a factor of its learning rate by step."""

    factor: Any = None

    def configure_optimizers(self) -> Any:
        optimizer = self.make_optimizer(self.parameters())
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": LambdaLR(optimizer, self.factor), "interval": "step"}}


def rate_spike(seed: int) -> Case:
    torch.manual_seed(seed)
    model = Scheduled(sgd(0.05, momentum=0.9))
    model.factor = lambda step: 40.0 if 100 <= step < 103 else 1.0
    return Case(model, loader(*digits(), seed=seed))


class UnevenRates(Perceptron):
    """Gives one layer a learning rate of its own."""

    layer = ""
    own_rate = 0.0

    def configure_optimizers(self) -> Any:
        layer = list(self.get_submodule(self.layer).parameters())
        others = [p for p in self.parameters() if all(p is not own for own in layer)]
        return AdamW([{"params": others, "lr": 1e-3}, {"params": layer, "lr": self.own_rate}], weight_decay=0.0)


def one_layer_runs_away(seed: int) -> Case:
    torch.manual_seed(seed)
    model = UnevenRates()
    model.layer, model.own_rate = "encoder.2", 0.3
    return Case(model, loader(*digits(), seed=seed))


def one_layer_stands_still(seed: int) -> Case:
    torch.manual_seed(seed)
    model = UnevenRates()
    model.layer, model.own_rate = "encoder.2", 1e-8
    return Case(model, loader(*digits(), seed=seed))


def decay_of_ten(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(Perceptron(adamw(1e-2, weight_decay=10.0)), loader(*digits(), seed=seed))


class Averaged(Perceptron):
    """Divides its loss by the number of pixels of the data set, a habit that Adam forgives unless eps is large."""

    def loss(self, batch: Any) -> torch.Tensor:
        return super().loss(batch) / 10_000


def large_eps(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(Averaged(adamw(1e-3, eps=1e-2)), loader(*digits(), seed=seed))


class Restored(Perceptron):
    """Copies the old weight of one layer back after every step, as a mask that was meant for another layer may."""

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        kept = self.encoder[2].weight.detach().clone()

        @torch.no_grad()
        def restore(*_: Any) -> None:
            self.encoder[2].weight.copy_(kept)

        optimizer.register_step_post_hook(restore)
        return optimizer


def update_undone(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(Restored(), loader(*digits(), seed=seed))


class DrawnAnew(Perceptron):
    """Draws the weight of one layer anew in the middle of the training, as an initialisation in the wrong place does."""

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if self.global_step == 100:
            nn.init.normal_(self.encoder[2].weight, std=3.0)


def weights_drawn_anew(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(DrawnAnew(), loader(*digits(), seed=seed))


class Shrunk(Perceptron):
    """Multiplies all weights by 0.9 before each batch, as a decay of one's own may do that was meant for the gradients."""

    @torch.no_grad()
    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        for parameter in self.parameters():
            parameter *= 0.9


def weights_shrunk_by_code(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(Shrunk(adamw(1e-3)), loader(*digits(), seed=seed))


TRAININGS = [
    Training(
        "rate-times-five",
        "updates",
        rate_times_five,
        200,
        "set",
        Expectation(
            "invisible", seen_by="a second run with a lower rate, which ends lower; this loss falls too, and no step stands out"
        ),
        "A transformer learns with five times the largest rate that is good for it.",
    ),
    Training(
        "rate-times-five-of-sgd",
        "updates",
        rate_times_five_plain,
        200,
        "held",
        Expectation("pattern", TOO_LARGE, cause="LearningRateTooHigh"),
        "A perceptron learns with five times the largest rate of SGD that is good for it, and loses what it learned.",
    ),
    Training(
        "rate-times-hundred",
        "updates",
        rate_times_hundred,
        150,
        "set",
        Expectation("pattern", (*TOO_LARGE, "NonFinite"), cause="LearningRateTooHigh"),
        "A convolutional network learns with a hundred times a good rate.",
    ),
    Training(
        "rate-far-too-low",
        "updates",
        rate_far_too_low,
        200,
        "held",
        Expectation("pattern", TOO_SMALL, cause="LearningRateTooLow"),
        "The learning rate of AdamW is 1e-9.",
    ),
    Training(
        "rate-too-low-for-its-steps",
        "updates",
        rate_too_low_for_its_steps,
        200,
        "set",
        Expectation("pattern", ("SlowLearning",), cause="LearningRateTooLow"),
        "The learning rate of AdamW is 4e-5, and the loss still falls as fast as at first when the fit ends.",
    ),
    Training(
        "rate-spike",
        "updates",
        rate_spike,
        200,
        "set",
        Expectation("pattern", TOO_LARGE, cause="LearningRateTooHigh", onset=100),
        "The learning rate is 40 times as high for three steps at step 100.",
    ),
    Training(
        "one-layer-runs-away",
        "updates",
        one_layer_runs_away,
        200,
        "held",
        Expectation("pattern", (*TOO_LARGE, "MassiveActivation"), "encoder.2*", "LearningRateTooHigh"),
        "One layer has 300 times the learning rate of all others, and its weights grow.",
    ),
    Training(
        "one-layer-stands-still",
        "updates",
        one_layer_stands_still,
        200,
        "set",
        Expectation("pattern", TOO_SMALL, "encoder.2*", "LearningRateTooLow"),
        "One layer has a learning rate of 1e-8, all others 1e-3.",
    ),
    Training(
        "decay-of-ten",
        "updates",
        decay_of_ten,
        200,
        "held",
        Expectation(
            "pattern", ("WeightDecayTooLarge", "ScaleCollapse", "LossConstant", "ConstantOutput"), cause="WeightDecayDominates"
        ),
        "A weight decay of 10 in AdamW shrinks the weights by a tenth at every step.",
    ),
    Training(
        "large-eps",
        "updates",
        large_eps,
        200,
        "set",
        Expectation("pattern", TOO_SMALL, cause="LearningRateTooLow"),
        "An eps of 1e-2 in AdamW exceeds all gradients, whose loss is divided by 10 000.",
    ),
    Training(
        "update-undone",
        "updates",
        update_undone,
        150,
        "held",
        Expectation("fact", ("UnchangedParameter",), "encoder.2*"),
        "A hook of the optimizer copies the old weight of one layer back at every step.",
    ),
    Training(
        "weights-drawn-anew",
        "updates",
        weights_drawn_anew,
        200,
        "set",
        Expectation("pattern", ("MovesBetweenSteps",), "encoder.2*", "WeightsWritten", onset=100),
        "Code draws the weight of one layer anew, 24 times as large, in the middle of the training.",
    ),
    Training(
        "weights-shrunk-by-code",
        "updates",
        weights_shrunk_by_code,
        200,
        "set",
        Expectation("pattern", ("WeightShrinkage", "MovesBetweenSteps"), "*", "WeightsWritten"),
        "Code multiplies all weights by 0.9 before each batch.",
    ),
]
