"""Reports of a hand-written loss whose tensors have shapes that broadcast: threads 1 and 2."""

from __future__ import annotations

import math

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.distributions import Categorical
from torch.utils.data import DataLoader, TensorDataset

from galleries.reports.report import Report, Run


def houses(count: int) -> tuple[Tensor, Tensor]:
    """Eight features of houses, and their prices in some unit."""
    features = torch.randn(count, 8)
    area, rooms, age, distance = features[:, 0], features[:, 1], features[:, 2], features[:, 3]
    price = 1.5 * area + 0.8 * area * rooms - age.abs() + torch.sin(2 * distance) + 0.5 * features[:, 4]
    return features, price + 0.2 * torch.randn(count)


class PriceModel(LightningModule):
    """A regression of prices by a small MLP."""

    def __init__(self, is_fixed: bool) -> None:
        super().__init__()
        self.is_fixed = is_fixed
        self.net = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, x: Tensor) -> Tensor:
        """The prices of a batch."""
        prediction: Tensor = self.net(x)
        return prediction.squeeze(-1) if self.is_fixed else prediction

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """The squared error."""
        x, y = batch
        loss: Tensor = ((self(x) - y) ** 2).mean()
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam."""
        return torch.optim.Adam(self.parameters(), lr=2e-3)


def train_prices(run: Run) -> float:
    """Train the regression; the share of variance explained on fresh houses."""
    torch.manual_seed(run.seed)
    loader = DataLoader(TensorDataset(*houses(3200)), batch_size=32, shuffle=True)
    model = PriceModel(run.is_fixed)
    run.trainer(max_steps=400).fit(model, loader)
    model.eval()
    x, y = houses(2000)
    with torch.no_grad():
        error = (model(x).flatten() - y).square().mean()
    return 1 - float(error / y.var())


class CartPoles:
    """Several poles, each on a cart of its own; an episode ends when the pole falls or after 200 steps."""

    def __init__(self, count: int) -> None:
        self.state = torch.empty(count, 4).uniform_(-0.05, 0.05)
        self.age = torch.zeros(count)

    def step(self, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Push each cart left or right: states, rewards and whether the episodes are over."""
        x, speed, angle, turn = self.state.unbind(1)
        force = action * 20.0 - 10.0
        sin, cos = angle.sin(), angle.cos()
        push = (force + 0.05 * turn**2 * sin) / 1.1
        turning = (9.8 * sin - cos * push) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
        moving = push - 0.05 * turning * cos / 1.1
        self.state = torch.stack((x + 0.02 * speed, speed + 0.02 * moving, angle + 0.02 * turn, turn + 0.02 * turning), 1)
        self.age += 1
        fallen = (self.state[:, 0].abs() > 2.4) | (self.state[:, 2].abs() > 12 * math.pi / 180)
        done = fallen | (self.age >= 200)
        fresh = torch.empty_like(self.state).uniform_(-0.05, 0.05)
        self.state = torch.where(done[:, None], fresh, self.state)
        self.age = torch.where(done, 0.0, self.age)
        return self.state, torch.ones(len(done)), done.float()


class ActorCritic(nn.Module):
    """A policy and a value of the state."""

    def __init__(self) -> None:
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))
        self.critic = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))

    def forward(self, state: Tensor) -> tuple[Categorical, Tensor]:
        """The distribution of actions, and the values [N, 1]."""
        return Categorical(logits=self.actor(state)), self.critic(state)


def rollout(model: ActorCritic, env: CartPoles, steps: int) -> tuple[Tensor, ...]:
    """States, actions, their log-probabilities, returns and advantages of some steps."""
    rows = []
    state = env.state
    for _ in range(steps):
        policy, value = model(state)
        action = policy.sample()
        following, reward, done = env.step(action)
        rows.append((state, action, policy.log_prob(action), value, reward[:, None], done[:, None]))
        state = following
    states, actions, log_probs, values, rewards, dones = (torch.stack(each) for each in zip(*rows, strict=True))
    next_value, running = model(state)[1], torch.zeros_like(values[0])
    advantages = torch.zeros_like(values)
    for step in reversed(range(steps)):
        delta = rewards[step] + 0.99 * next_value * (1 - dones[step]) - values[step]
        running = delta + 0.99 * 0.95 * (1 - dones[step]) * running
        advantages[step], next_value = running, values[step]
    return tuple(each.flatten(0, 1) for each in (states, actions, log_probs, advantages + values, advantages))


def train_ppo(run: Run) -> float:
    """Train PPO on the poles; the mean number of steps upright in fresh episodes."""
    torch.manual_seed(run.seed)
    env, model = CartPoles(32), ActorCritic()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with run.watching(model, optimizer):
        for _ in range(12):
            with torch.no_grad():
                states, actions, old_log_probs, returns, advantages = rollout(model, env, 64)
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
            if run.is_fixed:
                advantages = advantages.squeeze(-1)
            for _ in range(4):
                for rows in torch.randperm(len(states)).split(256):
                    policy, values = model(states[rows])
                    ratio = (policy.log_prob(actions[rows]) - old_log_probs[rows]).exp()
                    surrogate = ratio * advantages[rows]
                    clipped = ratio.clamp(0.8, 1.2) * advantages[rows]
                    policy_loss = -torch.min(surrogate, clipped).mean()
                    value_loss = (returns[rows] - values).square().mean()
                    loss = policy_loss + 0.5 * value_loss - 0.01 * policy.entropy().mean()
                    optimizer.zero_grad()
                    loss.backward()
                    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                    optimizer.step()
    env, ends = CartPoles(64), torch.zeros(64)
    with torch.no_grad():
        for _ in range(200):
            ends += env.step(model(env.state)[0].sample())[2]
    return float((200 / ends.clamp(min=1)).mean())


REPORTS = [
    Report(
        number=1,
        name="prediction-minus-target",
        doc="The network gives [32, 1] and the targets are [32], so their difference is [32, 32] and only the mean is learned.",
        train=train_prices,
        cause="the loss subtracts targets [32] from predictions [32, 1], which gives [32, 32]; squeeze the prediction",
    ),
    Report(
        number=2,
        name="advantage-times-ratio",
        doc="PPO multiplies the ratio [256] with advantages [256, 1], so each ratio meets every advantage and they cancel.",
        train=train_ppo,
        cause="the loss multiplies the ratio [256] with advantages [256, 1], which gives [256, 256]; squeeze the advantages",
    ),
]
