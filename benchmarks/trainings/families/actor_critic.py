"""Actors and critics that learn to walk to the last field of a board, by games that they play themselves.

Healthy: on fresh starts, the policy gets at least 30 % of the reward that lies between a policy that moves at random and the
shortest way.
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
from benchmarks.trainings.parts import ACTIVATIONS, Learner, learned, seeded
from benchmarks.trainings.spec import Spec
from galleries.health.training import Case

_MOVES = torch.tensor([[0, 1], [1, 0], [0, -1], [-1, 0]])
_COST, _LATER = 0.05, 0.95
"""The cost of a move, and the worth of a reward that is one move away."""


def _draw(random: Random) -> Mapping[str, Any]:
    return {
        "side": random.choice([3, 4, 5]),
        "width": random.choice([32, 64]),
        "shared": random.random() < 0.5,
        "normalised": random.random() < 0.5,
        "entropy": random.choice([0.0, 0.01, 0.03]),
        "observed": random.choice(["field", "numbers"]),
    }


class ActorCritic(nn.Module):
    """Logits of the four moves, and the worth of a field: from one body, or from two."""

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.side, self.is_field = spec["side"], spec["observed"] == "field"
        self.body = self._body(spec)
        self.second = None if spec["shared"] else self._body(spec)
        self.actor, self.critic = nn.Linear(spec["width"], 4), nn.Linear(spec["width"], 1)

    def _body(self, spec: Spec) -> nn.Sequential:
        first = self.side**2 if self.is_field else 2
        layers = [nn.Linear(first, spec["width"]), ACTIVATIONS[spec.activation]()]
        return nn.Sequential(*layers, nn.Linear(spec["width"], spec["width"]), ACTIVATIONS[spec.activation]())

    def forward(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        if self.is_field:
            seen = functional.one_hot(positions[..., 0] * self.side + positions[..., 1], self.side**2)
        else:
            seen = 2 * positions / (self.side - 1) - 1
        seen = seen.to(self.actor.weight.dtype)
        hidden = self.body(seen)
        return self.actor(hidden), self.critic(hidden if self.second is None else self.second(seen)).squeeze(-1)


def play(model: Any, positions: Tensor, side: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Positions, moves, rewards and whether a game was still under way, each [time, games, ...]; `model` gives logits."""
    over = torch.zeros(len(positions), dtype=torch.bool)
    steps = []
    with torch.no_grad():
        for _ in range(3 * side):
            moves = Categorical(logits=model(positions).float()).sample()
            following = (positions + _MOVES[moves]).clamp(0, side - 1)
            is_there = (following == side - 1).all(-1)
            steps.append((positions, moves, torch.where(is_there, 1.0, -_COST) * ~over, ~over))
            over, positions = over | is_there, following
    places, moves, rewards, playing = (torch.stack(each) for each in zip(*steps, strict=True))
    return places, moves, rewards, playing


class _Learner(Learner):
    discount = _LATER

    def returned(self, places: Tensor, rewards: Tensor, playing: Tensor) -> Tensor:
        """What the critic learns: the rewards of a game from each position on, later ones worth less; [time, games]."""
        total, returns = torch.zeros(rewards.shape[1]), []
        for reward in rewards.flip(0):
            total = reward + self.discount * total
            returns.append(total)
        return torch.stack(returns[::-1])

    def loss(self, batch: Any) -> Tensor:
        places, moves, rewards, playing = play(lambda positions: self(positions)[0], batch[0], self.spec["side"])
        logits, values = self(places)
        returned = self.returned(places, rewards, playing).to(values.dtype)
        advantage = returned - values.detach()
        if self.spec["normalised"]:
            advantage = (advantage - advantage[playing].mean()) / (advantage[playing].std() + 1e-6)
        policy = Categorical(logits=logits)
        gain = policy.log_prob(moves) * advantage + self.spec["entropy"] * policy.entropy()
        return -gain[playing].mean() + 0.5 * self.criterion(values[playing], returned[playing])


def _starts(spec: Spec, purpose: str) -> Tensor:
    """Fields at which games begin, all but the last one."""
    fields = torch.randint(spec["side"] ** 2 - 1, (2048,), generator=spec.source(purpose, of_task=True))
    return torch.stack([fields // spec["side"], fields % spec["side"]], 1)


def make(spec: Spec) -> Case:
    """The case of a spec."""
    seeded(spec)
    criterion = functional.mse_loss if spec.loss == "squared" else functional.smooth_l1_loss
    return learned(spec, ActorCritic(spec), criterion, _starts(spec, "train"), learner=_Learner)


def measure(module: LightningModule, spec: Spec) -> float:
    """The share of the reward between moving at random and the shortest way that the policy gets on fresh starts."""
    module.eval()
    starts, side = _starts(spec, "fresh"), spec["side"]
    if not bool(module(starts)[0].isfinite().all()):
        return float("-inf")
    with torch.random.fork_rng():
        torch.manual_seed(spec.seed)
        mine = play(lambda positions: module(positions)[0], starts, side)[2].sum(0).mean()
        chance = play(lambda positions: torch.zeros(len(positions), 4), starts, side)[2].sum(0).mean()
    ways = (2 * (side - 1) - starts.sum(1)).float()
    best = (1 - _COST * (ways - 1)).mean()
    return float((mine - chance) / (best - chance))


FAMILY = Family(
    "actor-critic",
    0.3,
    _draw,
    make,
    measure,
    ("squared", "smooth"),
    optimizers=("adam", "adam-fused", "adamw", "rmsprop", "nadam", "radam", "adamax"),
    activations=("relu", "tanh", "silu", "elu", "gelu"),
    initialisations=("default", "orthogonal", "xavier"),
    batches=(16, 32, 64),
    drops=False,
    tricks=False,
)
