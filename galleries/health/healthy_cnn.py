"""Healthy trainings of convolutional networks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional
from torch.optim import SGD, RMSprop
from torch.optim.lr_scheduler import OneCycleLR

from galleries.health.faulty_parts import Convnet, Learner, adamw, images, loader, sgd
from galleries.health.sound_parts import Classifier, Mixup, Net
from galleries.health.training import Case, Training


class OneCycle(Net):
    """Trains with SGD whose rate rises and falls once."""

    def configure_optimizers(self) -> Any:
        optimizer = SGD(self.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True)
        schedule = OneCycleLR(optimizer, max_lr=0.1, total_steps=251)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def batchnorm(seed: int) -> Case:
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for inputs, outputs in ((1, 16), (16, 16), (16, 32)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
    encoder = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return Case(OneCycle(encoder, nn.Linear(32, 10)), loader(*images(), seed=seed))


def plain(seed: int) -> Case:
    torch.manual_seed(seed)
    encoder = nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 64), nn.ReLU()),
    )
    return Case(Net(encoder, nn.Linear(64, 10), sgd(0.03, momentum=0.9)), loader(*images(), seed=seed))


class Residual(nn.Module):
    """A residual block that starts as the identity, since the scale of its last norm is zero at the start."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.norm2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        nn.init.zeros_(self.norm2.weight)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = functional.relu(self.norm1(self.conv1(inputs)))
        return functional.relu(inputs + self.norm2(self.conv2(hidden)))


def zero_gamma(seed: int) -> Case:
    torch.manual_seed(seed)
    stem = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
    encoder = nn.Sequential(stem, Residual(16), Residual(16), Residual(16), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return Case(Net(encoder, nn.Linear(16, 10), sgd(0.1, momentum=0.9, weight_decay=1e-4)), loader(*images(), seed=seed))


class Shifted(Net):
    """Learns images that are shifted at random."""

    def loss(self, batch: Any) -> Tensor:
        pixels, labels = batch
        down, right = torch.randint(-1, 2, (2,)).tolist()
        return super().loss((pixels.roll((down, right), (2, 3)), labels))

    def configure_optimizers(self) -> Any:
        return RMSprop(self.parameters(), lr=1e-3)


def groupnorm(seed: int) -> Case:
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for inputs, outputs, stride in ((1, 16, 1), (16, 32, 2), (32, 32, 1), (32, 32, 2)):
        layers += [nn.Conv2d(inputs, outputs, 3, stride, 1), nn.GroupNorm(4, outputs), nn.SiLU()]
    return Case(Shifted(nn.Sequential(*layers, nn.Flatten()), nn.Linear(128, 10)), loader(*images(), seed=seed))


class Segmentation(Learner):
    """Finds the strokes of noisy digits with a network that has a skip connection over its narrow part."""

    def __init__(self) -> None:
        super().__init__(adamw(3e-3))
        self.down = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
        self.middle = nn.Sequential(nn.Conv2d(16, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.ReLU())
        self.up = nn.ConvTranspose2d(32, 16, 2, 2)
        self.head = nn.Conv2d(32, 1, 1)

    def loss(self, batch: Any) -> Tensor:
        pixels, target = batch
        fine = self.down(pixels)
        logits = self.head(torch.cat([fine, self.up(self.middle(fine))], 1))
        shares = logits.sigmoid()
        dice = 1 - (2 * (shares * target).sum() + 1) / (shares.sum() + target.sum() + 1)
        return functional.binary_cross_entropy_with_logits(logits, target) + dice


def segmentation(seed: int) -> Case:
    torch.manual_seed(seed)
    pixels, _ = images()
    noise = 0.5 * torch.randn(pixels.shape, generator=Generator().manual_seed(seed))
    return Case(Segmentation(), loader(pixels + noise, (pixels > 0.5).float(), seed=seed))


class Depthwise(Classifier):
    """Has depthwise and pointwise convolutions with squeeze and excitation, and ReLU6 as in networks for phones."""

    def __init__(self) -> None:
        super().__init__(adamw(3e-3, weight_decay=1e-2))
        self.stem = nn.Conv2d(1, 24, 3, padding=1)
        self.depthwise = nn.ModuleList(nn.Conv2d(24, 24, 3, padding=1, groups=24, bias=False) for _ in range(3))
        self.norms = nn.ModuleList(nn.BatchNorm2d(24) for _ in range(3))
        self.gates = nn.ModuleList(nn.Linear(24, 24) for _ in range(3))
        self.pointwise = nn.ModuleList(nn.Conv2d(24, 24, 1) for _ in range(3))
        self.activation, self.head = nn.ReLU6(), nn.Linear(24, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.stem(inputs)
        for depthwise, norm, gate, pointwise in zip(self.depthwise, self.norms, self.gates, self.pointwise, strict=True):
            inner = self.activation(norm(depthwise(hidden)))
            inner = inner * gate(inner.mean((2, 3))).sigmoid()[:, :, None, None]
            hidden = hidden + pointwise(inner)
        return self.head(hidden.mean((2, 3)))


def depthwise(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(Depthwise(), loader(*images(), seed=seed))


class MixedImages(Mixup, Convnet):
    """Learns mixed images."""


def mixup(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(MixedImages(sgd(0.05, momentum=0.9, weight_decay=5e-4)), loader(*images(), seed=seed))


TRAININGS = [
    Training("cnn-batchnorm", "cnn", batchnorm, 250, "set", None, "Convolutions with batch norm, SGD with one cycle."),
    Training("cnn-plain", "cnn", plain, 300, "held", None, "Convolutions without norms, SGD with momentum."),
    Training("resnet-zero-gamma", "cnn", zero_gamma, 200, "set", None, "Residual blocks that start as the identity."),
    Training("cnn-groupnorm", "cnn", groupnorm, 250, "held", None, "Group norms, random shifts and RMSprop."),
    Training("cnn-segmentation", "cnn", segmentation, 200, "set", None, "Noisy images are segmented, with a skip connection."),
    Training("cnn-depthwise", "cnn", depthwise, 250, "held", None, "Depthwise convolutions, gates and ReLU6."),
    Training("cnn-mixup", "cnn", mixup, 250, "set", None, "Images are mixed in pairs, so that the loss stays high."),
]
