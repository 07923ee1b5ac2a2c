"""Healthy trainings on graphs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from galleries.health.faulty_parts import Learner, adamw, loader
from galleries.health.training import Case, Training


def _graph(seed: int, count: int = 240, classes: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    """Noisy features, edges mostly within a class, and classes."""
    source = Generator().manual_seed(8000 + seed)
    labels = torch.arange(count) % classes
    features = functional.one_hot(labels, 16).float() + torch.randn(count, 16, generator=source)
    likely = torch.where(labels[:, None] == labels, 0.1, 0.01)
    edges = (torch.rand(count, count, generator=source) < likely).triu(1)
    return features, (edges | edges.T).float() + torch.eye(count), labels


class Gcn(Learner):
    """Averages over neighbours and learns all nodes at once from the labels of every fourth group of four."""

    def __init__(self, edges: Tensor) -> None:
        super().__init__(adamw(1e-2, weight_decay=5e-4))
        scale = edges.sum(1).rsqrt()
        self.register_buffer("adjacency", scale[:, None] * edges * scale)
        self.conv1, self.conv2, self.head = nn.Linear(16, 32), nn.Linear(32, 32), nn.Linear(32, 4)
        self.dropout = nn.Dropout(0.3)

    def loss(self, batch: Any) -> Tensor:
        features, labels = batch
        hidden = functional.relu(self.adjacency @ self.conv1(features))
        hidden = self.dropout(functional.relu(self.adjacency @ self.conv2(hidden)))
        logits, known = self.head(hidden), torch.arange(len(labels)) // 4 % 4 == 0
        self.log("other_accuracy", (logits.argmax(1) == labels)[~known].float().mean())
        return functional.cross_entropy(logits[known], labels[known])


def gcn(seed: int) -> Case:
    torch.manual_seed(seed)
    features, edges, labels = _graph(seed)
    return Case(Gcn(edges), loader(features, labels, seed=seed, batch=len(labels), shuffle=False))


class Messages(Learner):
    """Counts the triangles of small graphs by gated sums over neighbours."""

    def __init__(self) -> None:
        super().__init__(adamw(3e-3))
        self.embed, self.norms = nn.Linear(12, 32), nn.ModuleList(nn.LayerNorm(32) for _ in range(3))
        self.updates = nn.ModuleList(nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32)) for _ in range(3))
        self.head = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))

    def loss(self, batch: Any) -> Tensor:
        edges, target = batch
        hidden = self.embed(edges)
        for norm, update in zip(self.norms, self.updates, strict=True):
            inner = norm(hidden)
            hidden = hidden + update(torch.cat([inner, edges @ inner / 4], 2))
        return functional.mse_loss(self.head(hidden.mean(1)), target)


def messages(seed: int) -> Case:
    torch.manual_seed(seed)
    source = Generator().manual_seed(9000 + seed)
    density = 0.2 + 0.4 * torch.rand(1024, 1, 1, generator=source)
    upper = (torch.rand(1024, 12, 12, generator=source) < density).float().triu(1)
    edges = upper + upper.transpose(1, 2)
    triangles = (edges @ edges * edges).sum((1, 2))[:, None]
    return Case(Messages(), loader(edges, (triangles - triangles.mean()) / triangles.std(), seed=seed))


TRAININGS = [
    Training("gcn-full-batch", "graph", gcn, 250, "set", None, "All nodes of a graph at once, a quarter with labels."),
    Training("graph-messages", "graph", messages, 250, "held", None, "Triangles of many small graphs are counted."),
]
