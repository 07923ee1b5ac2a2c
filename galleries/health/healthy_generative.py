"""Healthy trainings of models that generate or reconstruct."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Adam

from galleries.health.faulty_parts import Learner, adamw, digits, loader
from galleries.health.training import Case, Training


def _data(seed: int, batch: int = 32) -> Any:
    return loader(*digits(), seed=seed, batch=batch)


class Vae(Learner):
    """A variational autoencoder."""

    def __init__(self) -> None:
        super().__init__(adamw(2e-3))
        self.encoder = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU())
        self.mean, self.log_variance = nn.Linear(96, 8), nn.Linear(96, 8)
        self.decoder = nn.Sequential(nn.Linear(8, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 64))

    def loss(self, batch: Any) -> Tensor:
        pixels, _ = batch
        hidden = self.encoder(pixels)
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        latent = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        divergence = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(1).mean()
        return functional.mse_loss(self.decoder(latent), pixels, reduction="none").sum(1).mean() + 0.5 * divergence


def vae(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(Vae(), _data(seed))


class Gan(LightningModule):
    """A generator and a discriminator, each with an optimizer of its own."""

    critic_steps, rate = 1, 1e-3

    def __init__(self, betas: tuple[float, float] = (0.5, 0.999)) -> None:
        super().__init__()
        self.automatic_optimization, self.betas = False, betas
        self.generator = nn.Sequential(nn.Linear(16, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 64))
        self.discriminator = nn.Sequential(
            *(nn.Linear(64, 96), nn.LeakyReLU(0.2), nn.Linear(96, 96), nn.LeakyReLU(0.2), nn.Linear(96, 1))
        )

    def generate(self, count: int) -> Tensor:
        return self.generator(torch.randn(count, 16))

    def discriminator_loss(self, real: Tensor, fake: Tensor) -> Tensor:
        return functional.softplus(-self.discriminator(real)).mean() + functional.softplus(self.discriminator(fake)).mean()

    def generator_loss(self, fake: Tensor) -> Tensor:
        return functional.softplus(-self.discriminator(fake)).mean()

    def step(self, optimizer: Any, loss: Tensor) -> None:
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()

    def training_step(self, batch: Any, batch_idx: int) -> None:
        real, _ = batch
        generating, judging = self.optimizers()
        loss = self.discriminator_loss(real, self.generate(len(real)).detach())
        self.toggle_optimizer(judging)
        self.step(judging, loss)
        self.untoggle_optimizer(judging)
        self.log("train_loss", loss)
        if batch_idx % self.critic_steps == 0:
            self.toggle_optimizer(generating)
            fake = self.generate(len(real))
            loss = self.generator_loss(fake)
            self.step(generating, loss)
            self.untoggle_optimizer(generating)
            self.log("generator_loss", loss)
            self.log("distance", (fake.detach().mean(0) - real.mean(0)).square().mean().sqrt())

    def configure_optimizers(self) -> Any:
        nets = (self.generator, self.discriminator)
        return [Adam(net.parameters(), lr=self.rate, betas=self.betas) for net in nets], []


def gan(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(Gan(), _data(seed, 64))


class WassersteinGan(Gan):
    """Its critic is kept smooth by a penalty on its gradient and takes three steps for one of the generator."""

    critic_steps, rate = 3, 5e-4

    def discriminator_loss(self, real: Tensor, fake: Tensor) -> Tensor:
        share = torch.rand(len(real), 1)
        between = (share * real + (1 - share) * fake).requires_grad_()
        (gradient,) = torch.autograd.grad(self.discriminator(between).sum(), between, create_graph=True)
        penalty = (gradient.norm(dim=1) - 1).square().mean()
        return self.discriminator(fake).mean() - self.discriminator(real).mean() + 10 * penalty

    def generator_loss(self, fake: Tensor) -> Tensor:
        return -self.discriminator(fake).mean()


def wgan_gp(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(WassersteinGan((0.0, 0.9)), _data(seed))


class Sparse(Learner):
    """An autoencoder with many features, few of which are used by a sample."""

    def __init__(self) -> None:
        super().__init__(adamw(1e-3, weight_decay=0.0))
        self.encoder, self.decoder = nn.Linear(64, 256), nn.Linear(256, 64)

    def loss(self, batch: Any) -> Tensor:
        pixels, _ = batch
        features = functional.relu(self.encoder(pixels))
        self.log("active", (features > 0).float().mean())
        return functional.mse_loss(self.decoder(features), pixels) + 0.01 * features.abs().sum(1).mean()


def sparse(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(Sparse(), _data(seed, 64))


class Diffusion(Learner):
    """Predicts the noise of samples from the time of their diffusion."""

    def __init__(self) -> None:
        super().__init__(adamw(2e-3))
        self.time = nn.Sequential(nn.Linear(16, 128), nn.SiLU())
        self.inputs, self.hidden = nn.Linear(64, 128), nn.ModuleList(nn.Linear(128, 128) for _ in range(3))
        self.head = nn.Linear(128, 64)
        nn.init.zeros_(self.head.weight)

    def loss(self, batch: Any) -> Tensor:
        pixels, _ = batch
        time, noise = torch.rand(len(pixels), 1), torch.randn_like(pixels)
        angle = time * torch.pi / 2
        waves = time * 2.0 ** torch.arange(8)
        hidden = self.inputs(angle.cos() * pixels + angle.sin() * noise) + self.time(torch.cat([waves.sin(), waves.cos()], 1))
        for layer in self.hidden:
            hidden = hidden + functional.silu(layer(hidden))
        return functional.mse_loss(self.head(hidden), noise)


def diffusion(seed: int) -> Case:
    torch.manual_seed(seed)
    return Case(Diffusion(), _data(seed, 64))


TRAININGS = [
    Training("vae", "generative", vae, 300, "set", None, "A variational autoencoder of digits."),
    Training("gan", "generative", gan, 400, "held", None, "Generator and discriminator with manual optimization."),
    Training("wgan-gp", "generative", wgan_gp, 400, "set", None, "A critic with a penalty on its gradient."),
    Training("autoencoder-sparse", "generative", sparse, 300, "held", None, "Few of many features are used by a sample."),
    Training("diffusion", "generative", diffusion, 300, "set", None, "Noise is predicted; the head starts at zero."),
]
