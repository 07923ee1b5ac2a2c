"""Graph networks that classify the nodes of a graph with communities, all nodes in each batch.

Healthy: of the nodes whose labels were not given, the model gets at most 50 % of the errors of guessing the most frequent class
(a margin of 0.5).
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.trainings.families.family import ANY, Family
from benchmarks.trainings.parts import (
    ACTIVATIONS,
    CLASSIFICATION,
    Learner,
    accuracy_margin,
    dropouts,
    initialise,
    predicted,
    seeded,
)
from benchmarks.trainings.spec import Spec
from galleries.health.training import Case


def _draw(random: Random) -> Mapping[str, Any]:
    return {
        "classes": random.choice([2, 3, 5]),
        "nodes": random.choice([120, 200]),
        "width": random.choice([16, 32]),
        "depth": random.choice([1, 2, 3]),
        "residual": random.random() < 0.4,
        "labelled": random.choice([0.2, 0.5]),
    }


class GraphNet(nn.Module):
    """Layers each of which averages over the neighbours of a node."""

    def __init__(self, spec: Spec, features: int) -> None:
        super().__init__()
        width, depth = spec["width"], spec["depth"]
        self.layers = nn.ModuleList(nn.Linear(width if index else features, width) for index in range(depth))
        self.activations = nn.ModuleList(ACTIVATIONS[spec.activation]() for _ in range(depth))
        self.drop = nn.Sequential(*dropouts(spec))
        self.head = nn.Linear(width, spec["classes"])
        self.is_residual = spec["residual"]

    def forward(self, features: Tensor, adjacency: Tensor) -> Tensor:
        hidden = features
        for layer, activation in zip(self.layers, self.activations, strict=True):
            mixed = self.drop(activation(layer(adjacency @ hidden)))
            hidden = hidden + mixed if self.is_residual and hidden.shape == mixed.shape else mixed
        return self.head(hidden)


class _Learner(Learner):
    def loss(self, batch: Any) -> Tensor:
        features, adjacency, labels, given = (each[0] for each in batch)
        return self.criterion(self(features, adjacency)[given], labels[given])


def _graph(spec: Spec) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Features, the normalised adjacency, labels, and which labels are given."""
    source, nodes = spec.source("graph", of_task=True), spec["nodes"]
    labels = torch.randint(spec["classes"], (nodes,), generator=source)
    alike = labels[:, None] == labels
    edges = (torch.rand(nodes, nodes, generator=source) < torch.where(alike, 0.15, 0.02)).triu(1)
    adjacency = (edges | edges.T).float() + torch.eye(nodes)
    scale = adjacency.sum(1).rsqrt()
    centres = torch.randn(spec["classes"], 8, generator=source)
    features = centres[labels] + 1.5 * torch.randn(nodes, 8, generator=source)
    return features, scale[:, None] * adjacency * scale, labels, torch.rand(nodes, generator=source) < spec["labelled"]


def make(spec: Spec) -> Case:
    """The case of a spec."""
    seeded(spec)
    graph = _graph(spec)
    model = GraphNet(spec, graph[0].shape[1])
    initialise(model, spec.initialisation)
    batches = DataLoader(TensorDataset(*(each[None].expand(32, *each.shape) for each in graph)), batch_size=1)
    return Case(_Learner(spec, model, CLASSIFICATION[spec.loss]), batches)


def measure(module: LightningModule, spec: Spec) -> float:
    """The share of the errors of guessing that the model does not make on nodes without a given label."""
    features, adjacency, labels, given = _graph(spec)
    return accuracy_margin(predicted(module, features, adjacency)[~given], labels[~given])


FAMILY = Family(
    "graph",
    0.5,
    _draw,
    make,
    measure,
    ("cross-entropy", "cross-entropy", "smoothed", "focal"),
    optimizers=(*ANY, "rprop", "rprop", "lbfgs", "lbfgs"),
    batches=(1,),
    whole=1,
)
