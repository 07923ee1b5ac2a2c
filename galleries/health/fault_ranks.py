"""Faults of ranks: replicas that should be equal and are not. Both ranks run with gloo, each in a process of its own."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch.strategies import DDPStrategy
from torch.utils.data import DataLoader

from galleries.health.faulty_parts import Perceptron, adamw, digits, loader
from galleries.health.training import Case, Expectation, Training


def two_ranks(model: Perceptron, batches: DataLoader) -> Case:
    return Case(model, batches, {"strategy": DDPStrategy(process_group_backend="gloo")}, ranks=2)


class Perturbed(Perceptron):
    """Perturbs its weights on one rank at step 60, as a faulty memory may."""

    @torch.no_grad()
    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if self.global_step == 60 and self.global_rank == 1:
            self.encoder[2].weight += 0.01 * torch.randn_like(self.encoder[2].weight)


def one_rank_perturbed(seed: int) -> Case:
    torch.manual_seed(seed)
    return two_ranks(Perturbed(adamw(1e-3)), loader(*digits(), seed=seed))


class OwnRate(Perceptron):
    """Scales its learning rate by its rank."""

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        for group in optimizer.param_groups:
            group["lr"] *= 1 + self.global_rank
        return optimizer


def rates_by_rank(seed: int) -> Case:
    torch.manual_seed(seed)
    return two_ranks(OwnRate(adamw(1e-3)), loader(*digits(), seed=seed))


TRAININGS = [
    Training(
        "one-rank-perturbed",
        "ranks",
        one_rank_perturbed,
        150,
        "set",
        Expectation("pattern", ("ReplicasDiffer",), "encoder.2*", "ReplicasApart", onset=60),
        "One of two ranks perturbs the weights of a layer at step 60.",
    ),
    Training(
        "rates-by-rank",
        "ranks",
        rates_by_rank,
        150,
        "held",
        Expectation("pattern", ("ReplicasDiffer",), "*", "ReplicasApart"),
        "Each of two ranks has a learning rate of its own, so that replicas drift apart.",
    ),
]
