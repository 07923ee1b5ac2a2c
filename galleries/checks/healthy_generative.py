"""Healthy models of the data itself: autoencoders, a GAN, diffusion, a flow."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Adam, AdamW

from galleries.checks.case import Fit, Pattern, Plain
from galleries.checks.parts import BATCH, FEATURES, Learner, blobs, classified, fitted, images, mlp


def pixels() -> Tensor:
    """Images from 0 to 1."""
    return images(4 * BATCH)[0].sub(0.3).clamp(0, 2).div(2)


def autoencoder() -> Plain:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), mlp(64, 32, 8, 1), mlp(8, 32, 64, 1), nn.Unflatten(1, (1, 8, 8)))
    inputs = pixels()[:BATCH]
    return classified(model, inputs, inputs, loss=functional.mse_loss)


class Perceived(Learner):
    """Compares features of images by a frozen network, which a list hides from checkpoints."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(64, 24, 64, 1)
        self.eyes = [mlp(64, 16, 8, 1).requires_grad_(False)]

    def forward(self, inputs: Tensor) -> Tensor:
        return self.net(inputs.flatten(1)).view_as(inputs)

    def loss(self, batch: Any) -> Tensor:
        (inputs,) = batch
        return functional.mse_loss(self.eyes[0](self(inputs).flatten(1)), self.eyes[0](inputs.flatten(1)))


class Variational(Learner):
    """A variational autoencoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = mlp(64, 32, 8, 1), mlp(4, 32, 64, 1)

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_variance = self.encoder(inputs.flatten(1)).chunk(2, dim=1)
        code = mean + torch.randn_like(mean) * (log_variance / 2).exp() if self.training else mean
        return self.decoder(code).view_as(inputs), mean, log_variance

    def loss(self, batch: Any) -> Tensor:
        (inputs,) = batch
        logits, mean, log_variance = self(inputs)
        error = functional.binary_cross_entropy_with_logits(logits, inputs, reduction="sum")
        divergence = -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum()
        return (error + divergence) / len(inputs)


class Drawn(Variational):
    """The same, which draws its code in evaluation too."""

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_variance = self.encoder(inputs.flatten(1)).chunk(2, dim=1)
        code = mean + torch.randn_like(mean) * (log_variance / 2).exp()
        return self.decoder(code).view_as(inputs), mean, log_variance


class Quantized(Learner):
    """A VQ-VAE: codes are the nearest vectors of a codebook, and gradients pass straight through."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = mlp(64, 32, 8, 1), mlp(8, 32, 64, 1)
        self.codebook = nn.Parameter(torch.randn(6, 8) / 4)

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        features = self.encoder(inputs.flatten(1))
        nearest = self.codebook[torch.cdist(features, self.codebook).argmin(1)]
        through = features + (nearest - features).detach()
        return self.decoder(through).view_as(inputs), features, nearest

    def loss(self, batch: Any) -> Tensor:
        (inputs,) = batch
        rebuilt, features, nearest = self(inputs)
        commitment = functional.mse_loss(nearest, features.detach()) + 0.25 * functional.mse_loss(features, nearest.detach())
        return functional.mse_loss(rebuilt, inputs) + commitment


class Adversarial(Learner):
    """A GAN with two optimizers in manual optimization, and spectral norms in its discriminator."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.generator = nn.Sequential(nn.Linear(6, 16, bias=False), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, FEATURES))
        self.discriminator = nn.Sequential(
            nn.utils.parametrizations.spectral_norm(nn.Linear(FEATURES, 24)), nn.LeakyReLU(0.2), nn.Linear(24, 1)
        )

    def forward(self, noise: Tensor) -> Tensor:
        return self.generator(noise)

    def training_step(self, batch: Any, batch_idx: int) -> None:
        real, _ = batch
        generator, discriminator = self.optimizers()
        fake = self(torch.randn(len(real), 6))
        discriminator.zero_grad()
        on_real, on_fake = self.discriminator(real), self.discriminator(fake.detach())
        self.manual_backward((functional.softplus(-on_real) + functional.softplus(on_fake)).mean())
        discriminator.step()
        generator.zero_grad()
        deceived = functional.softplus(-self.discriminator(fake)).mean()
        self.manual_backward(deceived)
        generator.step()
        self.log("generator_loss", deceived)

    def configure_optimizers(self) -> Any:
        return [Adam(part.parameters(), lr=1e-3, betas=(0.5, 0.9)) for part in (self.generator, self.discriminator)]


class Toggled(Adversarial):
    """The same, with each part toggled while the other trains."""

    def training_step(self, batch: Any, batch_idx: int) -> None:
        real, _ = batch
        generator, discriminator = self.optimizers()
        noise = torch.randn(len(real), 6)
        self.toggle_optimizer(generator)
        self.manual_backward(-self.discriminator(self(noise)).mean())
        generator.step()
        generator.zero_grad()
        self.untoggle_optimizer(generator)
        self.toggle_optimizer(discriminator)
        self.manual_backward((self.discriminator(self(noise).detach()) - self.discriminator(real)).mean())
        discriminator.step()
        discriminator.zero_grad()
        self.untoggle_optimizer(discriminator)


class Diffusion(Learner):
    """Predicts the noise of a random time. Its last layer starts at 0, and it has no `forward`."""

    def __init__(self) -> None:
        super().__init__()
        self.time, self.body, self.out = nn.Embedding(10, 32), nn.Linear(FEATURES, 32), nn.Linear(32, FEATURES)
        self.middle = nn.Linear(32, 32)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def denoised(self, inputs: Tensor, time: Tensor) -> Tensor:
        hidden = functional.silu(self.body(inputs) + self.time(time))
        return self.out(functional.silu(self.middle(hidden)))

    def loss(self, batch: Any) -> Tensor:
        inputs, _ = batch
        time, noise = torch.randint(10, (len(inputs),)), torch.randn_like(inputs)
        share = ((time + 1) / 11).unsqueeze(1)
        return functional.mse_loss(self.denoised((1 - share).sqrt() * inputs + share.sqrt() * noise, time), noise)


class Coupling(nn.Module):
    """Scales and shifts one half of the features by functions of the other half, which start at 0."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(FEATURES // 2, 24, FEATURES, 1)
        nn.init.zeros_(self.net[-1].weight)
        nn.init.zeros_(self.net[-1].bias)

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        kept, changed = inputs.chunk(2, dim=1)
        scale, shift = self.net(kept).chunk(2, dim=1)
        scale = scale.tanh()
        return torch.cat([changed * scale.exp() + shift, kept], 1), scale.sum(1)


class Flow(Learner):
    """A normalising flow, learned by the likelihood of its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Coupling() for _ in range(4))

    def forward(self, inputs: Tensor) -> Tensor:
        total = torch.zeros(len(inputs))
        for layer in self.layers:
            inputs, volume = layer(inputs)
            total = total + volume
        return total - 0.5 * inputs.square().sum(1)

    def loss(self, batch: Any) -> Tensor:
        return -self(batch[0]).mean()

    def configure_optimizers(self) -> Any:
        return AdamW(self.parameters(), lr=1e-3)


def of_pixels(module: type[Learner]) -> Fit:
    return fitted(module, pixels())


FAMILY = "generative"
PATTERNS = [
    Pattern("autoencoder", FAMILY, autoencoder, "An autoencoder of pixels from 0 to 1."),
    Pattern("perceptual-loss", FAMILY, lambda: of_pixels(Perceived), "A loss by a frozen network that a list hides."),
    Pattern("variational-autoencoder", FAMILY, lambda: of_pixels(Variational), "A variational autoencoder."),
    Pattern("drawn-autoencoder", FAMILY, lambda: of_pixels(Drawn), "The same, which draws its code in evaluation too."),
    Pattern("quantized-autoencoder", FAMILY, lambda: of_pixels(Quantized), "A VQ-VAE with a straight-through gradient."),
    Pattern("gan", FAMILY, lambda: fitted(Adversarial), "A GAN with two optimizers, in manual optimization."),
    Pattern("toggled-gan", FAMILY, lambda: fitted(Toggled), "A Wasserstein GAN that toggles its optimizers."),
    Pattern("diffusion", FAMILY, lambda: fitted(Diffusion), "A step of diffusion whose last layer starts at 0."),
    Pattern("flow", FAMILY, lambda: fitted(Flow, *blobs(4 * BATCH)), "A normalising flow that starts as the identity."),
]
