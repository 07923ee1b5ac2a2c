"""Actors, with critics and without, that learn by policy gradients which of several actions suits a context.

Healthy: on fresh contexts, the policy gets at least 30 % of the reward that lies between chance and the best action.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.distributions import Categorical
from torch.nn import functional

from benchmarks.trainings.families.family import Family
from benchmarks.trainings.parts import ACTIVATIONS, Learner, learned, predicted, seeded
from benchmarks.trainings.spec import Spec
from galleries.health.training import Case


def _draw(random: Random) -> Mapping[str, Any]:
    return {
        "actions": random.choice([2, 3, 4]),
        "features": random.choice([4, 8]),
        "width": random.choice([32, 64]),
        "depth": random.choice([1, 2]),
        "critic": random.random() < 0.7,
        "shared": random.random() < 0.5,
        "entropy": random.choice([0.0, 0.01]),
        "noise": round(random.uniform(0.1, 0.5), 2),
    }


class ActorCritic(nn.Module):
    """Logits of actions and, with a critic, the value of a context: from one body, or from two."""

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.body = self._body(spec)
        self.second = self._body(spec) if spec["critic"] and not spec["shared"] else None
        self.actor = nn.Linear(spec["width"], spec["actions"])
        self.critic = nn.Linear(spec["width"], 1) if spec["critic"] else None

    @staticmethod
    def _body(spec: Spec) -> nn.Sequential:
        layers: list[nn.Module] = []
        for index in range(spec["depth"]):
            layers += [nn.Linear(spec["width"] if index else spec["features"], spec["width"]), ACTIVATIONS[spec.activation]()]
        return nn.Sequential(*layers)

    def forward(self, contexts: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.body(contexts)
        logits = self.actor(hidden)
        if self.critic is None:
            return logits, logits.new_zeros(len(logits))
        return logits, self.critic(hidden if self.second is None else self.second(contexts)).squeeze(1)


class _Learner(Learner):
    def loss(self, batch: Any) -> Tensor:
        contexts, rewards = batch
        logits, values = self(contexts)
        policy = Categorical(logits=logits)
        actions = policy.sample()
        reward = rewards.gather(1, actions[:, None]).squeeze(1)
        advantage = reward - values.detach()
        loss = -(advantage * policy.log_prob(actions)).mean() - self.spec["entropy"] * policy.entropy().mean()
        return loss + 0.5 * (values - reward).square().mean() if self.spec["critic"] else loss


def _data(spec: Spec, purpose: str) -> tuple[Tensor, Tensor]:
    """Contexts, and the reward of each action in each of them."""
    tastes = torch.randn(spec["features"], spec["actions"], generator=spec.source("tastes", of_task=True))
    source = spec.source(purpose, of_task=True)
    contexts = torch.randn(2048, spec["features"], generator=source)
    rewards = torch.tanh(contexts @ tastes) + spec["noise"] * torch.randn(2048, spec["actions"], generator=source)
    return contexts, rewards


def make(spec: Spec) -> Case:
    """The case of a spec."""
    seeded(spec)
    return learned(spec, ActorCritic(spec), functional.mse_loss, *_data(spec, "train"), learner=_Learner)


def measure(module: LightningModule, spec: Spec) -> float:
    """The share of the reward between chance and the best action that the policy gets on fresh contexts."""
    contexts, rewards = _data(spec, "fresh")
    logits, _ = predicted(module, contexts)
    chance, best = rewards.mean(), rewards.max(1).values.mean()
    reward = (logits.softmax(1) * rewards).sum(1).mean()
    return float((reward - chance) / (best - chance)) if bool(logits.isfinite().all()) else float("-inf")


FAMILY = Family(
    "policy",
    0.3,
    _draw,
    make,
    measure,
    ("natural",),
    optimizers=("adam", "adamw", "rmsprop", "nadam", "radam", "adamax", "momentum"),
    activations=("relu", "tanh", "silu", "elu", "gelu"),
    batches=(32, 64, 128),
    drops=False,
    tricks=False,
)
