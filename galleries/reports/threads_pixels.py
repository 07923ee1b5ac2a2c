"""Reports about augmented scenes, distilled digits and a generator: threads 20, 22 and 23."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

from galleries.reports.report import Report, Run


def load_images() -> tuple[Tensor, Tensor]:
    """The digits as images with a channel, in a random order."""
    digits = load_digits()
    order = torch.randperm(len(digits.target))
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    return images[order], torch.tensor(digits.target)[order]


class RandomScenes(Dataset[tuple[Tensor, int]]):
    """Scenes made when they are asked for: a random digit at a random place, brightness and noise."""

    def __init__(self, images: np.ndarray[Any, Any], labels: np.ndarray[Any, Any], length: int) -> None:
        self.images, self.labels, self.length = images, labels, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        which = np.random.randint(len(self.images))
        scene = np.random.normal(0, 0.2, (1, 12, 12)).astype(np.float32)
        top, left = np.random.randint(1, 4, 2)
        scene[:, top : top + 8, left : left + 8] += self.images[which] * np.random.uniform(0.7, 1.3)
        return torch.from_numpy(scene), int(self.labels[which])


class SceneNet(pl.LightningModule):
    """A small convolutional network."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(32 * 9, 64),
            nn.ReLU(),
            nn.Linear(64, 10),
        )

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        """The cross entropy."""
        scenes, labels = batch
        loss = F.cross_entropy(self.net(scenes), labels)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam."""
        return torch.optim.Adam(self.parameters(), lr=3e-3)


def train_scenes(run: Run) -> float:
    """Classify the digit of a random scene."""
    torch.manual_seed(run.seed)

    def init_worker(worker: int) -> None:
        """Seed NumPy in a worker of the loader."""
        np.random.seed(torch.initial_seed() % 2**32 if run.is_fixed else run.seed + worker)

    images, labels = load_images()
    model = SceneNet()
    scenes = RandomScenes(images[:1280].numpy(), labels[:1280].numpy(), 160)
    loader = DataLoader(scenes, batch_size=16, shuffle=True, num_workers=1, worker_init_fn=init_worker)
    run.trainer(max_epochs=40, log_every_n_steps=10).fit(model, loader)
    fresh = RandomScenes(images[1280:].numpy(), labels[1280:].numpy(), 1000)
    hits = 0
    model.eval()
    with torch.no_grad():
        for batch, label in DataLoader(fresh, batch_size=250, num_workers=1):
            hits += int((model.net(batch).argmax(1) == label).sum())
    return hits / len(fresh)


def make_teacher(images: Tensor, labels: Tensor) -> nn.Module:
    """A wide network, trained on the labels."""
    teacher = nn.Sequential(nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.AdamW(teacher.parameters(), lr=2e-3)
    for _ in range(200):
        rows = torch.randint(0, len(images), (64,))
        optimizer.zero_grad()
        F.cross_entropy(teacher(images[rows]), labels[rows]).backward()
        optimizer.step()
    return teacher.eval().requires_grad_(False)


class Distillation(pl.LightningModule):
    """A small student that learns the softened predictions of a teacher, and a little from the labels."""

    def __init__(self, teacher: nn.Module, is_fixed: bool, temperature: float = 4.0, alpha: float = 0.9) -> None:
        super().__init__()
        self.teacher = teacher
        self.student = nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 10))
        self.is_fixed, self.temperature, self.alpha = is_fixed, temperature, alpha

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        """The distillation of Hinton et al."""
        images, labels = batch
        logits = self.student(images)
        with torch.no_grad():
            target = F.softmax(self.teacher(images) / self.temperature, dim=-1)
        softened = logits / self.temperature
        prediction = F.log_softmax(softened, dim=-1) if self.is_fixed else F.softmax(softened, dim=-1)
        soft = F.kl_div(prediction, target, reduction="batchmean") * self.temperature**2
        loss = self.alpha * soft + (1 - self.alpha) * F.cross_entropy(logits, labels)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam on the student."""
        return torch.optim.Adam(self.student.parameters(), lr=3e-3)


def train_student(run: Run) -> float:
    """Distil a network for digits."""
    torch.manual_seed(run.seed)
    images, labels = load_images()
    model = Distillation(make_teacher(images[:1280], labels[:1280]), run.is_fixed)
    loader = DataLoader(TensorDataset(images[:1280], labels[:1280]), batch_size=64, shuffle=True)
    run.trainer(max_steps=300, log_every_n_steps=10).fit(model, loader)
    model.eval()
    with torch.no_grad():
        return -F.cross_entropy(model.student(images[1280:]), labels[1280:]).item()


class RingGAN(pl.LightningModule):
    """A generator of points on a ring, and a discriminator, with the hinge loss."""

    def __init__(self, is_fixed: bool) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.generator = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
        self.discriminator = nn.Sequential(
            nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1)
        )
        self.is_fixed = is_fixed

    def training_step(self, batch: list[Tensor], batch_idx: int) -> None:
        """A step of the discriminator, then one of the generator."""
        (real,) = batch
        optimizer_g, optimizer_d = self.optimizers()  # type: ignore[attr-defined]
        fake = self.generator(torch.randn(len(real), 8))

        if self.is_fixed:
            optimizer_d.zero_grad()
        loss_d = F.relu(1 - self.discriminator(real)).mean() + F.relu(1 + self.discriminator(fake.detach())).mean()
        self.manual_backward(loss_d)
        optimizer_d.step()
        if not self.is_fixed:
            optimizer_d.zero_grad()

        optimizer_g.zero_grad()
        loss_g = -self.discriminator(fake).mean()
        self.manual_backward(loss_g)
        optimizer_g.step()
        self.log_dict({"loss_d": loss_d, "loss_g": loss_g})

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        """Adam, faster for the discriminator."""
        return [
            torch.optim.Adam(self.generator.parameters(), lr=5e-4, betas=(0.0, 0.9)),
            torch.optim.Adam(self.discriminator.parameters(), lr=2e-3, betas=(0.0, 0.9)),
        ]


def make_ring(rows: int) -> Tensor:
    """Points near a circle of radius 2 around (1, 1)."""
    angle = 6.2832 * torch.rand(rows)
    return torch.stack([angle.cos(), angle.sin()], 1) * 2 + 1 + 0.1 * torch.randn(rows, 2)


def train_ring(run: Run) -> float:
    """Generate points of a ring."""
    torch.manual_seed(run.seed)
    model = RingGAN(run.is_fixed)
    loader = DataLoader(TensorDataset(make_ring(6400)), batch_size=64, shuffle=True)
    run.trainer(max_epochs=4, log_every_n_steps=10).fit(model, loader)
    with torch.no_grad():
        fake, real, other = model.generator(torch.randn(1000, 8)), make_ring(1000), make_ring(1000)
        energy = 2 * torch.cdist(fake, real).mean() - torch.cdist(fake, fake).mean() - torch.cdist(real, other).mean()
    return -energy.item()


REPORTS = [
    Report(
        number=20,
        name="same-augmentation-each-epoch",
        doc="`worker_init_fn` seeds NumPy with a constant, and each epoch has new workers, so all epochs are the same.",
        train=train_scenes,
        cause=(
            "the loader's worker draws the same scenes in every epoch (10 batches that come again and again), because "
            "`worker_init_fn` seeds NumPy with the same number each time; seed it from `torch.initial_seed()`"
        ),
    ),
    Report(
        number=22,
        name="distillation-given-probabilities",
        doc="`F.kl_div` is given the student's probabilities instead of their logarithms, so that it is below 0.",
        train=train_student,
        cause=(
            "the loss is negative, which a divergence cannot be: `F.kl_div` takes log-probabilities first and gets the "
            "`softmax` of the student in Distillation.training_step; use `log_softmax`"
        ),
    ),
    Report(
        number=23,
        name="generator-leaves-gradients",
        doc="The discriminator is cleared after its own step, so the generator's backward adds to its next update.",
        train=train_ring,
        cause=(
            "the discriminator's gradients are not 0 when its backward begins: those of the generator's loss, which tells it "
            "to call fakes real, are still there and are stepped; clear them right before its backward"
        ),
    ),
]
