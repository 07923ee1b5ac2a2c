"""Faults of target networks, and of gradients that are added up: both in the code between loss and step."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from itertools import chain
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from benchmarks.trainings.mutators.loss import multiply
from benchmarks.trainings.mutators.mutator import Mutator, Planted, after, is_usual
from benchmarks.trainings.mutators.optimizer import is_plain
from benchmarks.trainings.spec import Spec
from galleries.health.training import Case

_ALONE = ("mlp", "cnn", "resnet", "regression", "transformer", "recurrent", "autoencoder", "denoising", "clicks")
"""The families whose losses are means over samples, none of which depends on the others."""


def _learn_from(case: Case, target: Any, is_constant: Any) -> None:
    """Let the critic learn the next reward and what a target network expects behind it, in place of whole games.

    Args:
        case: the training.
        target: the target network.
        is_constant: says of each batch whether no gradient goes into the target network.
    """
    module: Any = case.module

    def returned(places: Tensor, rewards: Tensor, playing: Tensor) -> Tensor:
        later = target(places)[1]
        later = torch.cat([later[1:] * playing[1:], torch.zeros_like(later[:1])])
        return rewards + module.discount * (later.detach() if is_constant() else later)

    module.returned = returned


def _synchronise_rarely(case: Case, spec: Spec, every: float) -> Planted:
    module: Any = case.module
    # An object holds the copy, as the trainer of a user would; it is no part of the model.
    agent = SimpleNamespace(target_network=deepcopy(module.model).requires_grad_(False), steps=0)

    def synchronise(*args: Any) -> None:
        agent.steps += 1
        if agent.steps % int(every) == 0:
            agent.target_network.load_state_dict(module.model.state_dict())

    _learn_from(case, lambda places: agent.target_network(places), lambda: True)
    after(module, "on_train_batch_end", synchronise)
    return Planted(case)


def _train_target(case: Case, spec: Spec, share: float) -> Planted:
    """Give the optimizer the target network too, and let gradients into it in a share of the batches."""
    module: Any = case.module
    module.target = deepcopy(module.model)
    held, source = module.held, spec.source("trained")
    module.held = lambda part: chain(held(part.model), module.target.parameters())
    _learn_from(case, lambda places: module.target(places), lambda: float(torch.rand((), generator=source)) >= share)
    after(module, "on_train_batch_start", lambda *args: module.target.eval())
    return Planted(case, ("target*",))


def _cut_up(spec: Spec, pieces: float) -> Spec:
    return replace(spec, batch=max(1, spec.batch // int(pieces)), accumulate=int(pieces))


def _add_up(case: Case, spec: Spec, pieces: float) -> Planted:
    """Undo the division by the number of micro-batches, which Lightning does."""
    return multiply(case, pieces)


def _can_cut_up(spec: Spec) -> bool:
    """Whether steps grow with gradients, and no sample of a batch depends on the others."""
    is_alone = spec.family in _ALONE and dict(spec.shape).get("norm") != "batch"
    return is_alone and is_plain(spec) and is_usual(spec) and spec.accumulate == 1


MUTATORS = (
    Mutator(
        "target-stands-still",
        "The critic learns from a target network that takes over its weights only after each so many updates.",
        (10, 30, 100, 300, 1e6),
        plant=_synchronise_rarely,
        fits=lambda spec: spec.family == "actor-critic",
    ),
    Mutator(
        "target-trained",
        "The optimizer holds the target network from which the critic learns, and trains it in a share of the batches.",
        (0.1, 0.3, 0.5, 0.8, 1.0),
        plant=_train_target,
        fits=lambda spec: spec.family == "actor-critic",
    ),
    Mutator(
        "micro-batches-added-up",
        "A batch comes in so many parts, and their gradients are added up without a division by that number.",
        (2, 4, 8, 16, 32),
        change=_cut_up,
        plant=_add_up,
        fits=_can_cut_up,
    ),
)
