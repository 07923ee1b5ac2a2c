"""Threads on formats of numbers: integers that are averaged, and constants too small for float16."""

from __future__ import annotations

from copy import deepcopy

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

from galleries.reports.report import Report, Run


def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images of 8 x 8 and their labels: of 1,300 to train with, and the others."""
    data = load_digits()
    x = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 8 - 1
    y = torch.tensor(data.target)
    return x[:1300], y[:1300], x[1300:], y[1300:]


class WindowAttention(nn.Module):
    """Attention within a window, with a learned bias for each relative position, as in a Swin transformer."""

    relative_position_index: Tensor

    def __init__(self, dim: int, window: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.relative_position_bias_table = nn.Parameter(torch.randn((2 * window - 1) ** 2, heads) * 0.02)
        rows, columns = torch.meshgrid(torch.arange(window), torch.arange(window), indexing="ij")
        places = torch.stack([rows.flatten(), columns.flatten()])
        relative = places[:, :, None] - places[:, None, :] + window - 1
        self.register_buffer("relative_position_index", relative[0] * (2 * window - 1) + relative[1])

    def forward(self, x: Tensor) -> Tensor:
        """Adds what attention finds."""
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, dim=-1))
        bias = self.relative_position_bias_table[self.relative_position_index].permute(2, 0, 1)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        out: Tensor = x + self.proj(y.transpose(1, 2).flatten(2))
        return out


class Perceptron(nn.Module):
    """The second half of a block."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        """Adds what the body finds."""
        out: Tensor = x + self.body(x)
        return out


class Swin(nn.Module):
    """Two blocks of attention within a window, which give a value for each of its pixels."""

    def __init__(self, dim: int = 24, window: int = 4) -> None:
        super().__init__()
        self.embed = nn.Linear(1, dim)
        self.blocks = nn.Sequential(*(layer for _ in range(2) for layer in (WindowAttention(dim, window, 4), Perceptron(dim))))
        self.head = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 1))

    def forward(self, frames: Tensor) -> Tensor:
        """The next frames, of the same shape."""
        out: Tensor = self.head(self.blocks(self.embed(frames.flatten(1).unsqueeze(-1))))
        return out.view_as(frames)


def frames(count: int) -> tuple[Tensor, Tensor]:
    """Noisy frames of 4 x 4 pixels, and what they show next: all has moved down a line, and the first is dark."""
    x = torch.randn(count, 4, 4)
    y = torch.cat([torch.zeros(count, 1, 4), x[:, :-1]], dim=1)
    return x + 0.1 * torch.randn_like(x), y


@torch.no_grad()
def update_average(run: Run, average: nn.Module, model: nn.Module, decay: float = 0.95) -> None:
    """Moves the average towards the model."""
    for ema_v, model_v in zip(average.state_dict().values(), model.state_dict().values(), strict=True):
        if run.is_fixed and not ema_v.is_floating_point():
            continue
        ema_v.copy_(ema_v * decay + (1 - decay) * model_v)


def train_averaged_index(run: Run) -> float:
    """A Swin transformer that predicts the next frame, with averaged weights; the average's share of variance explained."""
    torch.manual_seed(run.seed)
    model = Swin()
    average = deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=300)
    with run.watching(model, optimizer):
        for _ in range(300):
            x, y = frames(32)
            loss = F.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            update_average(run, average, model)
    x, y = frames(512)
    average.eval()
    with torch.no_grad():
        return 1 - (F.mse_loss(average(x), y) / y.var()).item()


def classifier() -> nn.Sequential:
    """A perceptron for digits."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))


def train_half_adam(run: Run) -> float:
    """A classifier of digits trained in float16 throughout; the accuracy."""
    torch.manual_seed(run.seed)
    x, y, x_test, y_test = digits()
    model = classifier().half()
    if run.is_fixed:
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, eps=1e-4)
    else:
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with run.watching(model, optimizer):
        for _ in range(200):
            index = torch.randint(len(x), (32,))
            output = model(x[index].half())
            loss = F.cross_entropy(output.float(), y[index])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    model.eval()
    with torch.no_grad():
        return float((model(x_test.half()).argmax(1) == y_test).float().mean())


REPORTS = [
    Report(
        12,
        "averaged-position-index",
        "The average of the weights also averages an integer buffer, whose product falls a hair short and is cut to one less.",
        train_averaged_index,
        "the averaged copy's buffer `relative_position_index` of each block is no longer that of the model: it holds integers, "
        "and averaging makes some of them one less, so that the copy looks up the bias of other positions; skip integers",
    ),
    Report(
        18,
        "adam-eps-zero-in-float16",
        "The weights are float16, in which the eps of 1e-8 of Adam is 0.",
        train_half_adam,
        "eps of Adam (1e-8) is 0 in float16, and so are the squares of small gradients: the first update divides by 0 and "
        "makes weights NaN or infinite; take eps=1e-4 or keep the weights in float32",
    ),
]
