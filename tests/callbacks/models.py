"""Tiny modules, data and helpers for the tests of the callbacks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import Logger
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_hooks import StatsMonitor, Watch, assert_no_hooks
from lightning_hooks.hooks import OurHook
from lightning_hooks.rules.prefix import name_of
from lightning_hooks.stats.statistics import NAMES

MODULE_STATS = [name for name in NAMES if name != "ratio"]


def everything() -> list[Watch]:
    """Every tensor and every statistic."""
    return [
        Watch(modules="*", tensors=["input", "output", "input_grad", "output_grad"], stats=MODULE_STATS),
        Watch(params="*", tensors=["param", "grad", "final_grad", "update"], stats=list(NAMES)),
    ]


class Net(LightningModule):
    """A small regression with dropout; logs its loss when asked to."""

    def __init__(
        self, optimizer: Callable[[Iterable[Tensor]], Any] | None = None, dropout: float = 0.5, log: bool = False
    ) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(dropout), nn.Linear(8, 3))
        self.make = optimizer or plain_sgd
        self.log_loss = log
        self.made: list[Any] = []

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        loss = nn.functional.mse_loss(self(x), y)
        if self.log_loss:
            self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = self.make(self.parameters())
        self.made.append(optimizer)
        return optimizer


class ValNet(Net):
    """With a validation step."""

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self(batch[0])


class Gan(LightningModule):
    """Two optimizers in manual optimization; the discriminator steps at every other batch."""

    def __init__(self, every: int = 1, log: bool = False) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.gen = nn.Linear(2, 6)
        self.disc = nn.Linear(6, 1)
        self.every = every
        self.log_loss = log
        self.made: list[Any] = []

    def training_step(self, batch: Any, batch_idx: int) -> None:
        x = batch[0]
        first, second = self.optimizers()
        fake = self.gen(x[:, :2])
        loss = -self.disc(fake).mean()
        first.zero_grad()
        self.manual_backward(loss)
        first.step()
        if self.log_loss:
            self.log("loss", loss)
        if batch_idx % self.every == 0:
            second.zero_grad()
            self.manual_backward(self.disc(fake.detach()).mean() - self.disc(x).mean() + self.disc(x).square().mean())
            second.step()

    def configure_optimizers(self) -> Any:
        self.made = [torch.optim.SGD(self.gen.parameters(), lr=0.1), torch.optim.Adam(self.disc.parameters(), lr=0.05)]
        return self.made


def plain_sgd(parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def nesterov(parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, nesterov=True, foreach=True)


def adamw(parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01)


def data(batches: int = 6, batch_size: int = 4) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(batches * batch_size, 6, generator=generator)
    y = torch.randn(batches * batch_size, 3, generator=generator)
    return DataLoader(TensorDataset(x, y), batch_size=batch_size)


class Memory(Logger):
    """Keeps what it is given, under tags without `watch/`. Lightning's own dictionaries hold `epoch`, ours do not."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[int, dict[str, float]]] = []

    @property
    def name(self) -> str:
        return "memory"

    @property
    def version(self) -> int:
        return 0

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        pass

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        assert step is not None
        self.calls.append((step, {name_of(tag): value for tag, value in metrics.items()}))

    @property
    def ours(self) -> list[tuple[int, dict[str, float]]]:
        return [(step, metrics) for step, metrics in self.calls if "epoch" not in metrics]

    @property
    def steps(self) -> list[int]:
        return [step for step, _ in self.ours]

    def steps_of(self, tag: str) -> list[int]:
        return [step for step, metrics in self.calls if tag in metrics]

    def values(self, tag: str) -> list[float]:
        return [metrics[tag] for _, metrics in self.calls if tag in metrics]


def trainer_of(root: Path, *callbacks: Callback, **options: Any) -> Trainer:
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
        "num_sanity_val_steps": 0,
    }
    return Trainer(callbacks=list(callbacks), **{**settings, **options})


def watch_fit(
    root: Path, model: LightningModule, monitor: StatsMonitor, loader: Any = None, **options: Any
) -> tuple[Memory, Trainer]:
    """Fit with a monitor and an in-memory logger."""
    memory = Memory()
    trainer = trainer_of(root, monitor, logger=memory, **options)
    trainer.fit(model, loader if loader is not None else data())
    return memory, trainer


def ours_on(model: LightningModule) -> int:
    """How many hooks of ours modules, parameters and optimizers carry."""
    holders = [*model.modules(), *model.parameters(), *model.made]
    names = (
        "_forward_hooks",
        "_forward_pre_hooks",
        "_backward_hooks",
        "_backward_pre_hooks",
        "_post_accumulate_grad_hooks",
        "_optimizer_step_pre_hooks",
        "_optimizer_step_post_hooks",
    )
    hooks = [hook for holder in holders for name in names for hook in (getattr(holder, name, None) or {}).values()]
    return sum(isinstance(hook, OurHook) for hook in hooks)


def assert_clean(model: LightningModule) -> None:
    """Nothing of ours on modules, parameters, optimizers and the module's own methods."""
    assert_no_hooks(model)
    assert ours_on(model) == 0
    for module in model.modules():
        assert not module._forward_hooks and not module._forward_pre_hooks and not module._backward_hooks
        assert "_compiled_call_impl" not in vars(module)
        assert not module._forward_hooks_with_kwargs and not module._forward_pre_hooks_with_kwargs
    assert all(not parameter._backward_hooks for parameter in model.parameters())
    for optimizer in model.made:
        assert not optimizer._optimizer_step_pre_hooks and not optimizer._optimizer_step_post_hooks
    assert "configure_gradient_clipping" not in model.__dict__
    assert "on_before_optimizer_step" not in model.__dict__


def norm(*tensors: Tensor) -> float:
    """In float64."""
    return float(torch.cat([t.detach().double().flatten() for t in tensors]).square().sum().sqrt())
