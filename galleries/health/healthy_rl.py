"""Healthy trainings by reinforcement. The world is a square of 5 × 5 fields; the goal is its last field."""

from __future__ import annotations

from collections import deque
from copy import deepcopy
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.distributions import Categorical
from torch.nn import functional
from torch.optim import Adam

from galleries.health.faulty_parts import loader, stack
from galleries.health.training import Case, Training

SIDE, LENGTH = 5, 20
MOVES = torch.tensor([[0, 1], [1, 0], [0, -1], [-1, 0]])


def observe(position: Tensor) -> Tensor:
    return functional.one_hot(position[..., 0] * SIDE + position[..., 1], SIDE * SIDE).float()


def move(position: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The next position, the reward, and whether the goal is reached."""
    following = (position + MOVES[action]).clamp(0, SIDE - 1)
    done = (following == SIDE - 1).all(-1)
    return following, torch.where(done, 1.0, -0.02), done


def _steps(seed: int) -> Any:
    """A loader of nothing but numbers: a batch stands for a step in the world."""
    return loader(torch.arange(64), seed=seed, batch=1, shuffle=False)


class Policy(LightningModule):
    """Plays 32 games a step and learns by their returns, less their mean at each time."""

    entropy = 0.01

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.policy = stack(SIDE * SIDE, 32, 2, nn.Tanh), nn.Linear(32, 4)

    def play(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Features, logits and actions [time, games], and returns, which are 0 once a game has ended."""
        position, over = torch.zeros(32, 2, dtype=torch.long), torch.zeros(32, dtype=torch.bool)
        observations, actions, rewards, playing = [], [], [], []
        with torch.no_grad():
            for _ in range(LENGTH):
                observations.append(observe(position))
                actions.append(Categorical(logits=self.policy(self.encoder(observations[-1]))).sample())
                position, reward, done = move(position, actions[-1])
                rewards.append(reward * ~over)
                playing.append(~over)
                over = over | done
        total, returns = torch.zeros(32), []
        for reward in reversed(rewards):
            total = reward + 0.95 * total
            returns.append(total)
        self.log("reward", torch.stack(rewards).sum(0).mean(), prog_bar=True)
        return torch.stack(observations), torch.stack(actions), torch.stack(returns[::-1]), torch.stack(playing)

    def advantage(self, hidden: Tensor, returns: Tensor) -> tuple[Tensor, Tensor]:
        """How much better a game went than was expected, and the loss of what is expected."""
        return returns - returns.mean(1, keepdim=True), torch.zeros(())

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        observations, actions, returns, playing = self.play()
        hidden = self.encoder(observations)
        choice = Categorical(logits=self.policy(hidden))
        better, value_loss = self.advantage(hidden, returns)
        gain = choice.log_prob(actions) * better + self.entropy * choice.entropy()
        loss = -(gain * playing).sum() / playing.sum() + value_loss
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        return Adam(self.parameters(), lr=5e-3)


def reinforce(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(Policy(), _steps(seed))


class ActorCritic(Policy):
    """Learns what to expect of a position too."""

    def __init__(self) -> None:
        super().__init__()
        self.value = nn.Linear(32, 1)

    def advantage(self, hidden: Tensor, returns: Tensor) -> tuple[Tensor, Tensor]:
        value = self.value(hidden).squeeze(-1)
        return returns - value.detach(), 0.5 * functional.mse_loss(value, returns)


def actor_critic(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(ActorCritic(), _steps(seed), {"gradient_clip_val": 0.5})


class Dqn(LightningModule):
    """Learns values of actions from remembered moves, with a target that is copied every 20 steps."""

    def __init__(self) -> None:
        super().__init__()
        self.online = nn.Sequential(stack(SIDE * SIDE, 64, 2), nn.Linear(64, 4))
        self.target = deepcopy(self.online).requires_grad_(False)
        self.memory: deque[tuple[Tensor, ...]] = deque(maxlen=300)
        self.position, self.age = torch.zeros(8, 2, dtype=torch.long), torch.zeros(8)

    @torch.no_grad()
    def explore(self) -> None:
        greedy = self.online(observe(self.position)).argmax(1)
        chance = max(0.1, 1 - self.global_step / 150)
        action = torch.where(torch.rand(8) < chance, torch.randint(4, (8,)), greedy)
        following, reward, done = move(self.position, action)
        self.memory.append((self.position, action, reward, following, done))
        self.age += 1
        over = done | (self.age >= LENGTH)
        self.log("reached", done.float().mean())
        self.position, self.age = following.masked_fill(over[:, None], 0), self.age.masked_fill(over, 0)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        for _ in range(2):
            self.explore()
        chosen = [self.memory[index] for index in torch.randint(len(self.memory), (8,)).tolist()]
        position, action, reward, following, done = (torch.cat(parts) for parts in zip(*chosen, strict=True))
        with torch.no_grad():
            goal = reward + 0.95 * ~done * self.target(observe(following)).max(1).values
        value = self.online(observe(position)).gather(1, action[:, None]).squeeze(1)
        loss = functional.smooth_l1_loss(value, goal)
        self.log("train_loss", loss)
        return loss

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self.global_step % 20 == 0:
            self.target.load_state_dict(self.online.state_dict())

    def configure_optimizers(self) -> Any:
        return Adam(self.online.parameters(), lr=2e-3)


def dqn(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(Dqn(), _steps(seed))


TRAININGS = [
    Training("reinforce", "rl", reinforce, 200, "set", None, "A policy learns from the returns of whole games."),
    Training("dqn", "rl", dqn, 400, "held", None, "Values are learned from a memory, with a target network."),
    Training("actor-critic", "rl", actor_critic, 200, "set", None, "A policy with a critic, clipped."),
]
