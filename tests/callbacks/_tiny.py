"""Models whose gradients are known by hand, and what the tests of the transforms share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import Logger
from lightning.pytorch.plugins import MixedPrecision
from torch import Tensor, nn
from torch.utils.data import DataLoader

from lightning_hooks.rules.prefix import name_of
from lightning_hooks.transforms import Context, Transform


class Line(LightningModule):
    """The mean of x·w: the gradient of w is the mean of the batch, whatever w is. SGD with lr 1, w starts at 0."""

    def __init__(self, factor: float = 1.0, momentum: float = 0.0, fused: bool | None = None) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1, bias=False)
        nn.init.zeros_(self.layer.weight)
        self.factor, self.momentum, self.fused = factor, momentum, fused
        self.starts = 0

    @property
    def w(self) -> list[float]:
        return self.layer.weight.detach().flatten().tolist()

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return self.factor * self.layer(batch).float().mean()

    def on_train_start(self) -> None:
        self.starts += 1

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1.0, momentum=self.momentum, fused=self.fused)


class Skip(Line):
    """h = first(x); the sum of second(h) and of h itself, so that two consumers read h."""

    def __init__(self) -> None:
        super().__init__()
        del self.layer
        self.first = nn.Linear(2, 2, bias=False)
        self.second = nn.Linear(2, 1, bias=False)
        with torch.no_grad():
            self.first.weight.copy_(torch.eye(2))
            self.second.weight.copy_(torch.tensor([[2.0, 4.0]]))

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        h = self.first(batch)
        return self.second(h).sum() + h.sum()


class Two(LightningModule):
    """Manual optimization: `a` steps at every batch, `b` at every other one; the gradient of each is the mean of x."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.a = nn.Linear(2, 1, bias=False)
        self.b = nn.Linear(2, 1, bias=False)

    def training_step(self, batch: Tensor, batch_idx: int) -> None:
        for position, (layer, optimizer) in enumerate(zip((self.a, self.b), self.optimizers(), strict=True)):
            if position and batch_idx % 2:
                continue
            self.toggle_optimizer(optimizer)
            optimizer.zero_grad()
            self.manual_backward(layer(batch).mean())
            optimizer.step()
            self.untoggle_optimizer(optimizer)

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(layer.parameters(), lr=1.0) for layer in (self.a, self.b)]


@dataclass(frozen=True, eq=False)
class Spy(Transform):
    """Notes what it is given and changes nothing."""

    seen: list[tuple[int, str, list[float]]] = field(default_factory=list, repr=False)
    dtypes: list[torch.dtype] = field(default_factory=list, repr=False)

    def __call__(self, tensors: list[Tensor], context: Context) -> list[Tensor]:
        for name, tensor in zip(context.names, tensors, strict=True):
            self.seen.append((context.step, name, tensor.detach().float().flatten().tolist()))
            self.dtypes.append(tensor.dtype)
        return tensors

    def values(self, name: str) -> list[list[float]]:
        return [values for _, known, values in self.seen if known == name]


class Keeper(Logger):
    """Keeps what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: dict[int, dict[str, float]] = {}

    @property
    def name(self) -> str:
        return "keeper"

    @property
    def version(self) -> int:
        return 0

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        pass

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        assert step is not None
        self.lines.setdefault(step, {}).update({name_of(tag): value for tag, value in metrics.items()})


def loader(*batches: Sequence[Any]) -> DataLoader[Any]:
    """Each argument is a batch of rows; a flat list is a batch of one row."""
    tensors = [torch.tensor(b, dtype=torch.float32) for b in batches]
    return DataLoader([t if t.dim() == 2 else t[None] for t in tensors], batch_size=None)  # type: ignore[arg-type]


def make(root: Path, *callbacks: Callback, **options: Any) -> Trainer:
    settings: dict[str, Any] = {
        "max_epochs": 1,
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
        "accelerator": "cpu",
        "devices": 1,
        "default_root_dir": root,
        "log_every_n_steps": 1,
    }
    return Trainer(callbacks=list(callbacks), **{**settings, **options})


def scaled() -> dict[str, Any]:
    """Trainer options for a real loss scaler on the CPU. It starts at 1024: 65536 alone is no float16."""
    return {"plugins": MixedPrecision("16-mixed", "cpu", scaler=torch.amp.GradScaler("cpu", init_scale=1024.0))}


def scale_of(trainer: Trainer) -> float:
    return trainer.precision_plugin.scaler.get_scale()  # type: ignore[attr-defined]
