"""Healthy trainings of multilayer perceptrons that classify."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import LBFGS

from galleries.health.faulty_parts import Learner, Perceptron, adamw, digits, loader, sgd, stack
from galleries.health.sound_parts import Classifier, Mixup, Net, blobs, spirals
from galleries.health.training import Case, Training


def relu(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(Net(stack(64, 64, 4), nn.Linear(64, 10), adamw(2e-3)), loader(*digits(), seed=seed))


def tanh(seed: int) -> Case:
    torch.manual_seed(seed)
    module = Net(stack(2, 48, 4, nn.Tanh), nn.Linear(48, 3), sgd(0.05, momentum=0.9))
    return Case(module, loader(*spirals(seed), seed=seed))


def gelu(seed: int) -> Case:
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for index in range(4):
        width = 96 if index else 64
        layers += [nn.Linear(width, 96), nn.LayerNorm(96), nn.GELU(), nn.Dropout(0.1)]
    module = Net(nn.Sequential(*layers), nn.Linear(96, 10), adamw(1e-3, weight_decay=0.05))
    return Case(module, loader(*digits(), seed=seed), {"gradient_clip_val": 1.0})


class MixedSamples(Mixup, Perceptron):
    """Learns mixed samples."""


def mixup(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(MixedSamples(adamw(1e-3), width=128), loader(*digits(), seed=seed))


def overfit(seed: int) -> Case:
    torch.manual_seed(seed)
    pixels, labels = digits()
    return Case(Perceptron(adamw(1e-3), width=128), loader(pixels[:16], labels[:16], seed=seed, batch=16))


class QuasiNewton(Learner):
    """Learns all samples at once with LBFGS, which evaluates its closure several times a step."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = stack(16, 32, 3, nn.Tanh), nn.Linear(32, 5)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.encoder(inputs))

    def loss(self, batch: Any) -> Tensor:
        decay = sum(parameter.square().sum() for parameter in self.parameters())
        return super().loss(batch) + 1e-3 * decay

    def configure_optimizers(self) -> Any:
        return LBFGS(self.parameters(), lr=0.5, max_iter=4, history_size=10)


def lbfgs(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(QuasiNewton(), loader(*blobs(seed, count=512), seed=seed, batch=512, shuffle=False))


class DeepSupervision(Classifier):
    """Has a head after every layer, and learns the mean of their losses."""

    def __init__(self) -> None:
        super().__init__(adamw(1e-3))
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(5))
        self.heads = nn.ModuleList(nn.Linear(64, 10) for _ in range(5))

    def loss(self, batch: Any) -> Tensor:
        hidden, labels = batch
        losses = []
        for layer, head in zip(self.layers, self.heads, strict=True):
            hidden = functional.relu(layer(hidden))
            losses.append(functional.cross_entropy(head(hidden), labels))
        return torch.stack(losses).mean()


def deep_supervision(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(DeepSupervision(), loader(*digits(), seed=seed))


class Imbalanced(Learner):
    """Learns a rare class: one sample in twenty is positive."""

    def __init__(self) -> None:
        super().__init__(adamw(2e-3))
        self.encoder, self.head = stack(16, 48, 3, nn.SiLU), nn.Linear(48, 1)

    def loss(self, batch: Any) -> Tensor:
        inputs, labels = batch
        return functional.binary_cross_entropy_with_logits(self.head(self.encoder(inputs)).squeeze(1), labels)


def imbalanced(seed: int) -> Case:
    torch.manual_seed(seed)
    inputs, labels = blobs(seed, classes=20)
    return Case(Imbalanced(), loader(inputs, (labels == 0).float(), seed=seed, batch=64))


def plateau(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(Net(stack(64, 96, 10), nn.Linear(96, 10), adamw(1e-3)), loader(*digits(), seed=seed, batch=64))


def noise(seed: int) -> Case:
    torch.manual_seed(seed)
    inputs, labels = torch.randn(512, 128), torch.randint(10, (512,))
    return Case(Net(stack(128, 128, 10), nn.Linear(128, 10), adamw(5e-4)), loader(inputs, labels, seed=seed, batch=128))


TRAININGS = [
    Training("mlp-relu", "mlp", relu, 300, "set", None, "Four layers with ReLU learn digits with AdamW."),
    Training("mlp-tanh", "mlp", tanh, 400, "held", None, "Four layers with tanh learn spirals with SGD and momentum."),
    Training("mlp-gelu", "mlp", gelu, 300, "set", None, "Layers with LayerNorm, GELU and dropout learn digits, clipped."),
    Training("mlp-mixup", "mlp", mixup, 300, "held", None, "Digits are mixed in pairs, so that the loss stays high."),
    Training("mlp-overfit", "mlp", overfit, 300, "set", None, "Sixteen digits are learned by heart on purpose."),
    Training("mlp-lbfgs", "mlp", lbfgs, 150, "held", None, "All samples at once with LBFGS and its closure."),
    Training("mlp-deep-supervision", "mlp", deep_supervision, 300, "set", None, "Every layer has a head and a loss."),
    Training("mlp-imbalanced", "mlp", imbalanced, 300, "held", None, "One sample in twenty is positive."),
    Training("mlp-plateau", "mlp", plateau, 300, "set", None, "Ten layers leave a plateau, and gradients grow a thousandfold."),
    # At seed 1 this training diverges after step 380: its loss rises from 0.4 to 5, above that of the first step.
    Training("mlp-noise", "mlp", noise, 360, "held", None, "Ten layers learn random labels by heart, after a plateau."),
]
