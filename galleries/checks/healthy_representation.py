"""Healthy learning of representations: contrastive, momentum targets, metric learning, distillation."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import AdamW

from galleries.checks.case import Pattern, Plain
from galleries.checks.parts import BATCH, CLASSES, FEATURES, Learner, blobs, classified, fitted, mlp


def augmented(inputs: Tensor) -> Tensor:
    return inputs + 0.2 * torch.randn_like(inputs)


class Contrastive(Learner):
    """SimCLR: two views of a sample are to be more alike than any others of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(FEATURES, 24, bias=False), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 8))

    def forward(self, inputs: Tensor) -> Tensor:
        return functional.normalize(self.encoder(inputs), dim=1)

    def loss(self, batch: Any) -> Tensor:
        inputs, _ = batch
        views = self(torch.cat([augmented(inputs), augmented(inputs)]))
        scores = (views @ views.T / 0.5).masked_fill(torch.eye(len(views), dtype=torch.bool), float("-inf"))
        return functional.cross_entropy(scores, torch.arange(len(views)).roll(len(inputs)))


class Momentum(Learner):
    """BYOL: predicts the output of a copy that follows as a moving average, inside the training step."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(FEATURES, 24, bias=False), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 8))
        self.predictor = mlp(8, 16, 8, 1)
        self.target = copy.deepcopy(self.encoder).requires_grad_(False)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.encoder(inputs)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        with torch.no_grad():
            for follower, leader in zip(self.target.parameters(), self.encoder.parameters(), strict=True):
                follower.lerp_(leader, 0.01)
        return super().training_step(batch, batch_idx)

    def loss(self, batch: Any) -> Tensor:
        one, two = augmented(batch[0]), augmented(batch[0])
        with torch.no_grad():
            targets = self.target(two), self.target(one)
        predictions = self.predictor(self.encoder(one)), self.predictor(self.encoder(two))
        pairs = zip(predictions, targets, strict=True)
        return sum((-functional.cosine_similarity(*pair).mean() for pair in pairs), torch.zeros(()))


class TwoModalities(nn.Module):
    """CLIP: scores of each text for each image of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.image, self.text = mlp(FEATURES, 24, 8, 1), mlp(6, 24, 8, 1)
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, image: Tensor, text: Tensor) -> Tensor:
        image, text = functional.normalize(self.image(image), dim=1), functional.normalize(self.text(text), dim=1)
        return self.scale.exp() * image @ text.T


def modalities() -> Plain:
    torch.manual_seed(0)
    inputs, _ = blobs()
    texts = inputs[:, :6] + 0.1 * torch.randn(BATCH, 6)

    def loss(scores: Tensor, labels: Tensor) -> Tensor:
        return (functional.cross_entropy(scores, labels) + functional.cross_entropy(scores.T, labels)) / 2

    return classified(TwoModalities(), (inputs, texts), torch.arange(BATCH), loss=loss)


class Triplets(Learner):
    """Learns a metric from triplets of its batch."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = mlp(FEATURES, 24, 8)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.encoder(inputs)

    def loss(self, batch: Any) -> Tensor:
        anchor, positive, negative = (self(each) for each in batch)
        return functional.triplet_margin_loss(anchor, positive, negative, margin=1.0)


def triplets() -> Any:
    """Each class occurs at every fifth place."""
    inputs, _ = blobs(4 * BATCH)
    return fitted(Triplets, inputs, inputs.roll(CLASSES, 0), inputs.roll(1, 0))


class Decorrelated(Learner):
    """Barlow twins: the correlation of features over the batch is to be the identity."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = mlp(FEATURES, 24, 8, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.encoder(inputs)

    def loss(self, batch: Any) -> Tensor:
        one, two = (self(augmented(batch[0])) for _ in range(2))
        one, two = ((each - each.mean(0)) / each.std(0) for each in (one, two))
        return (one.T @ two / len(one) - torch.eye(8)).square().sum()


class Distilled(Learner):
    """Learns from a frozen teacher, and from the labels."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher = mlp(FEATURES, 48, CLASSES).requires_grad_(False).eval()
        self.student = mlp(FEATURES, 16, CLASSES, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.student(inputs)

    def loss(self, batch: Any) -> Tensor:
        inputs, labels = batch
        logits = self(inputs)
        with torch.no_grad():
            wanted = (self.teacher(inputs) / 2).softmax(1)
        soft = functional.kl_div((logits / 2).log_softmax(1), wanted, reduction="batchmean")
        return functional.cross_entropy(logits, labels) + 4 * soft

    def configure_optimizers(self) -> Any:
        return AdamW(self.student.parameters(), lr=3e-3)


class ValueLearner(Learner):
    """A deep Q network: a target network gives the values of the next states."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(FEATURES, 24, 3)
        self.target = copy.deepcopy(self.net).requires_grad_(False)

    def forward(self, state: Tensor) -> Tensor:
        return self.net(state)

    def loss(self, batch: Any) -> Tensor:
        state, action, reward, following = batch
        value = self(state).gather(1, action[:, None])[:, 0]
        with torch.no_grad():
            wanted = reward + 0.9 * self.target(following).amax(1)
        return functional.smooth_l1_loss(value, wanted)

    def on_train_batch_end(self, *_: Any) -> None:
        for follower, leader in zip(self.target.parameters(), self.net.parameters(), strict=True):
            follower.data.lerp_(leader.data, 0.05)


def values() -> Any:
    state, label = blobs(4 * BATCH)
    return fitted(ValueLearner, state, label % 3, label.float() - 2, state.roll(1, 0))


FAMILY = "representation"
PATTERNS = [
    Pattern("contrastive", FAMILY, lambda: fitted(Contrastive), "SimCLR, whose loss compares the samples of a batch."),
    Pattern("momentum-target", FAMILY, lambda: fitted(Momentum), "BYOL, whose frozen target follows in the training step."),
    Pattern("two-modalities", FAMILY, modalities, "CLIP, whose outputs are the scores of all pairs of a batch."),
    Pattern("triplets", FAMILY, triplets, "Metric learning by triplets."),
    Pattern("decorrelated", FAMILY, lambda: fitted(Decorrelated), "Barlow twins, whose loss is over the whole batch."),
    Pattern("distilled", FAMILY, lambda: fitted(Distilled), "A student of a frozen teacher."),
    Pattern("value-learner", FAMILY, values, "A deep Q network, whose target follows at the end of each batch."),
]
