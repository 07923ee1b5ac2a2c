"""Reports about optimizers that users wrote or resumed themselves: threads 24, 26 and 27."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer
from torch.utils.data import DataLoader, TensorDataset

from galleries.reports.report import Report, Run


def load_images() -> tuple[Tensor, Tensor]:
    """The digits as images with a channel, in a random order."""
    digits = load_digits()
    order = torch.randperm(len(digits.target))
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    return images[order], torch.tensor(digits.target)[order]


class LARS(Optimizer):
    """SGD with momentum whose rate is scaled for each matrix by the norm of the weight over that of the gradient."""

    def __init__(self, params: Iterable[nn.Parameter], lr: float, is_fixed: bool, momentum: float = 0.9) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum})
        self.is_fixed = is_fixed

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update all parameters."""
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is None:
                    continue
                update = param.grad
                if param.ndim > 1:
                    scale = param.norm() / (param.grad.norm() + 1e-8) if self.is_fixed else param.norm() / param.grad.norm()
                    update = 0.05 * scale * update
                state = self.state[param]
                if "momentum" not in state:
                    state["momentum"] = torch.zeros_like(param)
                state["momentum"].mul_(group["momentum"]).add_(update)
                param.add_(state["momentum"], alpha=-group["lr"])


class ZeroInitBlock(nn.Module):
    """A residual block that adds nothing at first, as its last scale is 0."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        nn.init.zeros_(self.bn2.weight)

    def forward(self, x: Tensor) -> Tensor:
        """The input and what is added to it."""
        return F.relu(x + self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))


def train_lars(run: Run) -> float:
    """Classify digits in large batches."""
    torch.manual_seed(run.seed)
    images, labels = load_images()
    stem = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12), nn.ReLU())
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 10))
    model = nn.Sequential(stem, ZeroInitBlock(12), ZeroInitBlock(12), head)
    optimizer = LARS(model.parameters(), lr=0.1, is_fixed=run.is_fixed)
    loader = DataLoader(TensorDataset(images[:1280], labels[:1280]), batch_size=64, shuffle=True)
    with run.watching(model, optimizer):
        for _ in range(10):
            for image, label in loader:
                optimizer.zero_grad()
                loss = F.cross_entropy(model(image), label)
                loss.backward()
                optimizer.step()
    model.eval()
    with torch.no_grad():
        return float((model(images[1280:]).argmax(1) == labels[1280:]).float().mean())


class HandAdam(Optimizer):
    """Adam, written out."""

    def __init__(self, params: Iterable[nn.Parameter], lr: float, is_fixed: bool) -> None:
        super().__init__(params, {"lr": lr, "betas": (0.9, 0.999), "eps": 1e-8})
        self.is_fixed = is_fixed

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update all parameters."""
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for param in group["params"]:
                state = self.state[param]
                if not state:
                    state.update(step=0, mean=torch.zeros_like(param), square=torch.zeros_like(param))
                state["step"] += 1
                state["mean"].lerp_(param.grad, 1 - beta1)
                state["square"].mul_(beta2).addcmul_(param.grad, param.grad, value=1 - beta2)
                scale = (state["square"] / (1 - beta2 ** state["step"])).sqrt_().add_(group["eps"])
                rate = group["lr"] / (1 - beta1 ** state["step"])
                weight = param.data if self.is_fixed else param.data.contiguous()
                weight.addcdiv_(state["mean"], scale, value=-rate)


class SparseAutoencoder(nn.Module):
    """Of many features the 4 largest rebuild the input; at first the encoder is the decoder, transposed."""

    def __init__(self, width: int, features: int) -> None:
        super().__init__()
        decoder = F.normalize(torch.randn(width, features), dim=0)
        self.decoder = nn.Parameter(decoder)
        self.encoder = nn.Parameter(decoder.t().clone())
        self.encoder_bias = nn.Parameter(torch.zeros(features))
        self.decoder_bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        """The input, rebuilt."""
        features = F.relu(F.linear(x - self.decoder_bias, self.encoder, self.encoder_bias))
        top = features.topk(4, dim=-1)
        sparse = torch.zeros_like(features).scatter(-1, top.indices, top.values)
        return F.linear(sparse, self.decoder, self.decoder_bias)


def make_activations(rows: int, directions: Tensor) -> Tensor:
    """Activations of a layer, each the sum of about 3 of its directions, and a little noise."""
    count = len(directions)
    strengths = torch.rand(rows, count) * (torch.rand(rows, count) < 3 / count)
    return strengths @ directions + 0.02 * torch.randn(rows, directions.shape[1])


def train_autoencoder(run: Run) -> float:
    """Find sparse features of activations."""
    torch.manual_seed(run.seed)
    directions = F.normalize(torch.randn(64, 32), dim=1)
    activations = make_activations(20_000, directions)
    model = SparseAutoencoder(32, 96)
    optimizer = HandAdam(model.parameters(), lr=3e-3, is_fixed=run.is_fixed)
    with run.watching(model, optimizer):
        for _ in range(400):
            batch = activations[torch.randint(0, len(activations), (128,))]
            optimizer.zero_grad()
            loss = F.mse_loss(model(batch), batch)
            loss.backward()
            optimizer.step()
    fresh = make_activations(2000, directions)
    with torch.no_grad():
        return 1 - (F.mse_loss(model(fresh), fresh) / fresh.var(0).mean()).item()


STEPS = 300


def rate_at(step: int) -> float:
    """A linear warmup and a cosine to 0."""
    return min(1.0, (step + 1) / 20) * (1 + math.cos(math.pi * min(1.0, step / STEPS))) / 2


def train_until(last: int, path: Path, run: Run, data: TensorDataset) -> nn.Module:
    """Train until a step, from the checkpoint if there is one, and leave a checkpoint."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate_at)
    step = 0
    if path.exists():
        checkpoint = torch.load(path)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        if run.is_fixed:
            scheduler.load_state_dict(checkpoint["scheduler"])
        step = checkpoint["step"]
    loader = DataLoader(data, batch_size=16, shuffle=True)
    with run.watching(model, optimizer):
        while step < last:
            for image, label in loader:
                optimizer.zero_grad()
                loss = F.cross_entropy(model(image), label)
                loss.backward()
                optimizer.step()
                scheduler.step()
                step += 1
                if step == last:
                    break
    checkpoint = {
        "step": step,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
    }
    torch.save(checkpoint, path)
    return model


def train_resumed(run: Run) -> float:
    """Classify digits, of whose labels some are wrong, in two jobs."""
    torch.manual_seed(run.seed)
    images, labels = load_images()
    is_wrong = torch.rand(len(labels)) < 0.2
    noisy = torch.where(is_wrong, torch.randint(0, 10, labels.shape), labels)
    data = TensorDataset(images[:1280], noisy[:1280])
    path = run.folder / "last.pt"
    train_until(STEPS // 2, path, run, data)
    model = train_until(STEPS, path, run, data)
    with torch.no_grad():
        return -F.cross_entropy(model(images[1280:]), labels[1280:]).item()


REPORTS = [
    Report(
        number=24,
        name="normalise-zero-gradient",
        doc="LARS divides by the norm of the gradient, which is 0 at the first step in blocks whose last scale begins at 0.",
        train=train_lars,
        cause=(
            "the gradients of `conv1` and `conv2` of both blocks are exactly 0 at step 0, because `bn2.weight` begins at 0; "
            "LARS.step divides by their norm, 0 / 0 times 0 is NaN, and these weights are NaN after the first step; add a "
            "small number to the norm in the optimizer"
        ),
    ),
    Report(
        number=26,
        name="optimizer-writes-copy",
        doc="A hand-written Adam updates `param.data.contiguous()`, a copy where the weight lies transposed in memory.",
        train=train_autoencoder,
        cause=(
            "`encoder` has gradients, and Adam has moments of it, but it never moves: it is not contiguous (a clone of a "
            "transposed weight), so HandAdam.step writes into the copy that `contiguous()` makes; write into the parameter"
        ),
    ),
    Report(
        number=27,
        name="resume-without-scheduler",
        doc="The resumed job loads the model and the optimizer but not the scheduler, whose warmup and cosine begin anew.",
        train=train_resumed,
        cause=(
            "the second job continues at step 150 with the moments of the first, but its LambdaLR begins at step 0: a warmup "
            "again, and a rate that ends at half of the peak instead of 0; load the scheduler's state too"
        ),
    ),
]
