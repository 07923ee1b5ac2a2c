"""Healthy models of structured inputs and outputs: segmentation, graphs, several heads, equations."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import LBFGS, Adam

from galleries.checks.case import Fit, Pattern, Plain
from galleries.checks.parts import (
    BATCH,
    CLASSES,
    FEATURES,
    Learner,
    blobs,
    classified,
    fitted,
    images,
    loader,
    mlp,
    regressed,
    sequences,
    waves,
)


class Segmenter(nn.Module):
    """A U-Net of two scales."""

    def __init__(self) -> None:
        super().__init__()

        def block(inputs: int, outputs: int) -> nn.Sequential:
            return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(4, outputs), nn.SiLU())

        self.down, self.bottom, self.up = block(1, 8), block(8, 16), block(8, 8)
        self.rise, self.join, self.head = nn.ConvTranspose2d(16, 8, 2, stride=2), nn.Conv2d(16, 8, 1), nn.Conv2d(8, 3, 1)

    def forward(self, pixels: Tensor) -> Tensor:
        skip = self.down(pixels)
        risen = self.rise(self.bottom(functional.max_pool2d(skip, 2)))
        return self.head(self.up(self.join(torch.cat([skip, risen], 1))))


def segmentation() -> Plain:
    torch.manual_seed(0)
    pixels, _ = images()
    labels = (pixels[:, 0] > 0).long() + (pixels[:, 0] > 1).long()
    return classified(Segmenter(), pixels, labels)


class DenseGraphs(nn.Module):
    """Message passing over batches of graphs of equal size."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(6, 16), nn.Linear(16, 16), nn.Linear(16, CLASSES)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        share = edges / edges.sum(-1, keepdim=True).clamp(min=1)
        hidden = self.first(nodes).relu()
        hidden = hidden + self.second(share @ hidden).relu()
        return self.head(hidden.mean(1))


def dense_graphs() -> Plain:
    torch.manual_seed(0)
    nodes, labels = sequences()
    edges = (torch.rand(BATCH, 7, 7) < 0.4).float()
    return classified(DenseGraphs(), (nodes, edges), labels)


class OneGraph(nn.Module):
    """Classifies the nodes of one graph, which exchange messages along its edges by intention."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(FEATURES, 16), nn.Linear(16, 16), nn.Linear(16, CLASSES)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        hidden = self.first(nodes).relu()
        messages = torch.zeros_like(hidden).index_add(0, edges[1], hidden[edges[0]])
        return self.head((hidden + self.second(messages) / 3).relu())


def one_graph() -> Plain:
    torch.manual_seed(0)
    nodes, labels = blobs(24)
    source = torch.arange(24).repeat(3)
    edges = torch.stack([source, (source + torch.tensor([1, 5, 10]).repeat_interleave(24)) % 24])
    return classified(OneGraph(), (nodes, edges), labels, peer_options={"batch_dim": None})


class Heads(Learner):
    """Learns a class and two numbers of an image, from batches with names."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 24), nn.ReLU())
        self.heads = nn.ModuleDict({"label": nn.Linear(24, CLASSES), "light": nn.Linear(24, 1), "box": nn.Linear(24, 4)})

    def forward(self, image: Tensor) -> dict[str, Tensor]:
        hidden = self.body(image)
        return {name: head(hidden) for name, head in self.heads.items()}

    def loss(self, batch: Any) -> Tensor:
        outputs = self(batch["image"])
        light = functional.mse_loss(outputs["light"][:, 0], batch["light"])
        boxes = functional.smooth_l1_loss(outputs["box"], batch["box"])
        return functional.cross_entropy(outputs["label"], batch["label"]) + light + boxes


def heads() -> Fit:
    torch.manual_seed(0)
    pixels, labels = images(4 * BATCH)
    light, box = pixels.mean((1, 2, 3)), pixels[:, 0, :2, :2].flatten(1)
    return Fit(Heads(), loader(image=pixels, label=labels, light=light, box=box), ("image",))


class Uncertain(nn.Module):
    """Predicts a mean and the logarithm of a variance."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.mean, self.spread = mlp(FEATURES, 24, 24, 1), nn.Linear(24, 1), nn.Linear(24, 1)

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.body(inputs).relu()
        return self.mean(hidden), functional.softplus(self.spread(hidden))


def uncertain() -> Plain:
    torch.manual_seed(0)

    def loss(outputs: tuple[Tensor, Tensor], targets: Tensor) -> Tensor:
        return functional.gaussian_nll_loss(outputs[0], targets, outputs[1] + 1e-3)

    return regressed(Uncertain(), loss=loss)


class Recommender(nn.Module):
    """Multiplies embeddings of users and items."""

    def __init__(self) -> None:
        super().__init__()
        self.user, self.item, self.bias = nn.Embedding(30, 8), nn.Embedding(20, 8), nn.Embedding(20, 1)

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        return (self.user(users) * self.item(items)).sum(1) + self.bias(items)[:, 0]


def recommender() -> Plain:
    torch.manual_seed(0)
    users, items = torch.randint(30, (BATCH,)), torch.randint(20, (BATCH,))
    return classified(Recommender(), (users, items), torch.randn(BATCH), loss=functional.mse_loss)


class Equation(Learner):
    """Solves u'' = −u by the second derivative of its output, with a condition at 0."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, points: Tensor) -> Tensor:
        return self.net(points)

    def loss(self, batch: Any) -> Tensor:
        points = batch[0].requires_grad_(True)
        value = self(points)
        (first,) = torch.autograd.grad(value.sum(), points, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), points, create_graph=True)
        return (second + value).square().mean() + (self(torch.zeros(1, 1)) - 1).square().mean()


class Energy(Learner):
    """Predicts forces as the derivative of its energy, inside `forward`."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(FEATURES, 24), nn.SiLU(), nn.Linear(24, 1))

    def forward(self, positions: Tensor) -> Tensor:
        with torch.enable_grad():
            positions = positions.detach().requires_grad_(True)
            (gradient,) = torch.autograd.grad(self.net(positions).sum(), positions, create_graph=self.training)
        return -gradient

    def loss(self, batch: Any) -> Tensor:
        positions, forces = batch
        return functional.mse_loss(self(positions), forces)


class Closure(Learner):
    """Learns with L-BFGS, which computes its loss several times a step."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(FEATURES, 16, 1, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.net(inputs)

    def loss(self, batch: Any) -> Tensor:
        inputs, targets = batch
        return functional.mse_loss(self(inputs), targets)

    def configure_optimizers(self) -> Any:
        return LBFGS(self.parameters(), lr=0.1, max_iter=3)


class Forecast(Learner):
    """Convolutions that see only the past predict the next values of each series."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Conv1d(6, 16, 2), nn.Conv1d(16, 16, 2, dilation=2), nn.Conv1d(16, 6, 1)

    def forward(self, series: Tensor) -> Tensor:
        hidden = self.first(functional.pad(series.transpose(1, 2), (1, 0))).relu()
        hidden = self.second(functional.pad(hidden, (2, 0))).relu()
        return self.head(hidden).transpose(1, 2)

    def loss(self, batch: Any) -> Tensor:
        series, _ = batch
        return functional.mse_loss(self(series[:, :-1]), series[:, 1:])

    def configure_optimizers(self) -> Any:
        return Adam(self.parameters(), lr=1e-3)


FAMILY = "structured"
PATTERNS = [
    Pattern("segmentation", FAMILY, segmentation, "A U-Net with group norms and a label for each pixel."),
    Pattern("dense-graphs", FAMILY, dense_graphs, "Message passing over batches of graphs."),
    Pattern("one-graph", FAMILY, one_graph, "Nodes of one graph, which exchange messages on purpose."),
    Pattern("several-heads", FAMILY, heads, "A class and two regressions from one body, with batches by name."),
    Pattern("uncertainty", FAMILY, uncertain, "A mean and a variance by their likelihood."),
    Pattern("recommender", FAMILY, recommender, "Embeddings of users and items."),
    Pattern(
        "equation",
        FAMILY,
        lambda: fitted(Equation, torch.linspace(-3, 3, 4 * BATCH)[:, None]),
        "A physics-informed network with second derivatives.",
    ),
    Pattern(
        "forces",
        FAMILY,
        lambda: fitted(Energy, blobs(4 * BATCH)[0], -blobs(4 * BATCH)[0]),
        "Forces as the derivative of an energy, in `forward`.",
    ),
    Pattern("closure", FAMILY, lambda: fitted(Closure, *waves(4 * BATCH)), "L-BFGS."),
    Pattern("forecast", FAMILY, lambda: fitted(Forecast, *sequences(4 * BATCH)), "Causal convolutions over series."),
]
