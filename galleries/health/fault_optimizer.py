"""Faults of optimizers: what they hold, what they leave out, and their rates."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from galleries.health.faulty_parts import Language, Perceptron, adamw, digits, loader, sgd, tokens
from galleries.health.training import Case, Expectation, Training


class GroupForgotten(Language):
    """Gives weights a weight decay, and forgets the group of everything without: biases and norms."""

    def configure_optimizers(self) -> Any:
        decayed = [p for name, p in self.named_parameters() if p.dim() > 1]
        return self.make_optimizer([{"params": decayed, "weight_decay": 0.01}])


def group_forgotten(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(GroupForgotten(), loader(*tokens(seed), seed=seed, batch=16))


class EncoderForgotten(Perceptron):
    """Optimizes only its head."""

    def configure_optimizers(self) -> Any:
        return self.make_optimizer(self.head.parameters())


def encoder_forgotten(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(EncoderForgotten(adamw(1e-2)), loader(*digits(), seed=seed))


class CopyOptimized(Perceptron):
    """Optimizes a copy of its encoder beside itself."""

    def configure_optimizers(self) -> Any:
        twin = copy.deepcopy(self.encoder)
        return self.make_optimizer([*twin.parameters(), *self.head.parameters()])


def copy_optimized(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(CopyOptimized(), loader(*digits(), seed=seed))


class StrangerBeside(Perceptron):
    """Optimizes a layer of an older model as well, which no forward pass uses."""

    def configure_optimizers(self) -> Any:
        return self.make_optimizer([*self.parameters(), *nn.Linear(64, 64).parameters()])


def stranger_beside(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(StrangerBeside(), loader(*digits(), seed=seed))


class HeadReplaced(Perceptron):
    """Begins again with a new head at step 60; the optimizer keeps the old one."""

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if self.global_step == 60:
            self.head = nn.Linear(64, 10)


def head_replaced(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(HeadReplaced(), loader(*digits(), seed=seed))


def rate_of_zero(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(Perceptron(adamw(0.0)), loader(*digits(), seed=seed))


class Scheduled(Perceptron):
    """Falls to a learning rate of 0 at step 60 of 200, since its schedule counts epochs of an older data set."""

    def configure_optimizers(self) -> Any:
        optimizer = self.make_optimizer(self.parameters())
        scheduler = LambdaLR(optimizer, lambda step: max(0.0, 1 - step / 60))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def schedule_ends_early(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(Scheduled(sgd(0.05, momentum=0.9)), loader(*digits(), seed=seed))


class GroupOfZero(Perceptron):
    """Leaves the rate of one group at the 0 that its warm-up was to begin with."""

    def configure_optimizers(self) -> Any:
        groups = [{"params": self.encoder.parameters(), "lr": 0.0}, {"params": self.head.parameters(), "lr": 3e-3}]
        return self.make_optimizer(groups)


def group_of_zero(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(GroupOfZero(), loader(*digits(), seed=seed))


def betas_swapped(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(Perceptron(adamw(1e-2, betas=(0.999, 0.9))), loader(*digits(), seed=seed))


class FrozenMoves(Perceptron):
    """Holds one layer frozen, and decays it in place at every step, as an average of weights by hand may."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder[2].requires_grad_(False)

    @torch.no_grad()
    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        self.encoder[2].weight.mul_(0.995)


def frozen_moves(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(FrozenMoves(), loader(*digits(), seed=seed))


class WritesCopy(torch.optim.SGD):
    """Descends the gradient with a flat vector of all weights, which copies those that lie transposed in memory."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data.reshape(-1).sub_(parameter.grad.reshape(-1), alpha=group["lr"])
        return loss


def optimizer_writes_copy(seed: int) -> Case:
    torch.manual_seed(seed)
    module = Perceptron(lambda parameters: WritesCopy(parameters, lr=0.05))
    layer = module.encoder[2]
    layer.weight = nn.Parameter(layer.weight.detach().t().contiguous().t())
    return Case(module, loader(*digits(), seed=seed))


class HalfRestored(Perceptron):
    """Goes on with the weights and the schedule of an earlier training, and with a new optimizer."""

    earlier: Any = None

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        schedule = LambdaLR(optimizer, lambda step: 0.5 ** (step / 500))
        if self.earlier is not None:
            schedule.load_state_dict(self.earlier)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def moments_not_restored(seed: int) -> Case:
    torch.manual_seed(seed)
    module, data = HalfRestored(adamw(1e-2)), loader(*digits(), seed=seed)
    made = module.configure_optimizers()
    optimizer, schedule = made["optimizer"], made["lr_scheduler"]["scheduler"]
    for _ in range(5):
        for batch in data:
            optimizer.zero_grad()
            module.loss(batch).backward()
            optimizer.step()
            schedule.step()
    optimizer.zero_grad()
    module.earlier = schedule.state_dict()
    return Case(module, data)


class RateSetAgain(Perceptron):
    """Sets the rate of its configuration when it goes on from a checkpoint, although the rate has been lowered since."""

    def on_train_start(self) -> None:
        for group in self.optimizers().param_groups:
            group["lr"] = 1e-2

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if self.global_step == 40:
            for group in self.optimizers().param_groups:
                group["lr"] = 1e-3


def rate_set_again(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(RateSetAgain(adamw(1e-2)), loader(*digits(), seed=seed), resumes=80)


TRAININGS = [
    Training(
        "group-forgotten",
        "optimizer",
        group_forgotten,
        200,
        "set",
        Expectation("fact", ("NotInOptimizer", "UnchangedParameter"), "*norm*", "ParametersForgotten"),
        "The optimizer of a transformer holds the group with weight decay only, not biases and norms.",
    ),
    Training(
        "encoder-forgotten",
        "optimizer",
        encoder_forgotten,
        150,
        "held",
        Expectation("fact", ("NotInOptimizer", "UnchangedParameter"), "encoder*", "ParametersForgotten"),
        "The optimizer holds the head only.",
    ),
    Training(
        "copy-optimized",
        "optimizer",
        copy_optimized,
        150,
        "set",
        Expectation("fact", ("StrangerInOptimizer", "NotInOptimizer", "UnchangedParameter"), cause="ParametersForgotten"),
        "The optimizer holds the parameters of a copy of the encoder.",
    ),
    Training(
        "stranger-beside",
        "optimizer",
        stranger_beside,
        150,
        "held",
        Expectation("fact", ("StrangerInOptimizer",)),
        "The optimizer also holds a layer that is not in the model.",
    ),
    Training(
        "head-replaced",
        "optimizer",
        head_replaced,
        200,
        "set",
        Expectation(
            "fact", ("StrangerInOptimizer", "NotInOptimizer", "UnchangedParameter"), cause="ParametersForgotten", onset=60
        ),
        "A new head replaces the old one at step 60, and the optimizer keeps the old one.",
    ),
    Training(
        "optimizer-writes-copy",
        "optimizer",
        optimizer_writes_copy,
        150,
        "set",
        Expectation("fact", ("CopyUpdated", "UnchangedParameter"), "encoder.2.weight", "OptimizerWritesCopy"),
        "An optimizer writes into a flat copy of a weight that is transposed in memory.",
    ),
    Training(
        "moments-not-restored",
        "optimizer",
        moments_not_restored,
        150,
        "set",
        Expectation("fact", ("StateNotRestored",)),
        "A training goes on with its weights and its schedule, and without the moments of its optimizer.",
    ),
    Training(
        "rate-set-again",
        "optimizer",
        rate_set_again,
        150,
        "held",
        Expectation("fact", ("ResumedOtherwise",), onset=80),
        "A training that goes on at step 80 sets the rate with which it began, 10 times that of the checkpoint.",
    ),
    Training(
        "rate-of-zero",
        "optimizer",
        rate_of_zero,
        150,
        "held",
        Expectation("fact", ("LearningRateZero", "UnchangedParameter"), cause="LearningRateTooLow"),
        "The learning rate is 0.",
    ),
    Training(
        "schedule-ends-early",
        "optimizer",
        schedule_ends_early,
        200,
        "set",
        Expectation("fact", ("LearningRateZero", "UnchangedParameter"), cause="LearningRateTooLow", onset=60),
        "The schedule reaches a learning rate of 0 at step 60 of 200.",
    ),
    Training(
        "group-of-zero",
        "optimizer",
        group_of_zero,
        150,
        "held",
        Expectation("fact", ("LearningRateZero", "UnchangedParameter"), cause="LearningRateTooLow"),
        "The group of the encoder has a learning rate of 0, that of the head does not.",
    ),
    Training(
        "betas-swapped",
        "optimizer",
        betas_swapped,
        200,
        "set",
        Expectation("fact", ("BetasSwapped",)),
        "The betas of AdamW are (0.999, 0.9), so that it goes on in directions of a thousand steps ago.",
    ),
    Training(
        "frozen-layer-moves",
        "optimizer",
        frozen_moves,
        150,
        "set",
        Expectation("fact", ("FrozenMoves",), "encoder.2*"),
        "A frozen layer shrinks in place at every step.",
    ),
]
