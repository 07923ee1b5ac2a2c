"""The callback that most people write: forward hooks, one `.item()` and one `add_scalar` for each number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from benchmarks.modes import CallbackMode

SIX: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": torch.mean,
    "std": torch.std,
    "norm": torch.linalg.vector_norm,
    "min": torch.min,
    "max": torch.max,
    "zero_fraction": lambda tensor: (tensor == 0).float().mean(),
}


class Naive(Callback):
    """Six statistics of outputs, parameters and gradients, at every step that it is in the trainer for."""

    def __init__(self) -> None:
        self._handles: list[RemovableHandle] = []
        self._write: Callable[[str, float, int], None] | None = None
        self._step = 0

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self._step = trainer.global_step
        if not self._handles:
            self._write = trainer.logger.experiment.add_scalar  # type: ignore[union-attr]
            for name, module in pl_module.named_modules():
                if not list(module.children()):
                    self._handles.append(module.register_forward_hook(self._hook(name)))

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        for name, parameter in pl_module.named_parameters():
            self._note(f"param/{name}", parameter.detach())
            if parameter.grad is not None:
                self._note(f"grad/{name}", parameter.grad)

    def close(self) -> None:
        """Take the hooks off."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _hook(self, name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            self._note(f"output/{name}", output.detach())

        return hook

    def _note(self, tag: str, tensor: Tensor) -> None:
        if self._write is None or tensor.numel() < 2 or not tensor.is_floating_point():
            return
        for stat, function in SIX.items():
            self._write(f"{stat}/{tag}", function(tensor).item(), self._step)


class NaiveMode(CallbackMode):
    """The naive callback, in its blocks only."""

    def __init__(self) -> None:
        self.naive = Naive()
        super().__init__("naive", self.naive)

    def stop(self, trainer: Trainer) -> None:
        """Take its hooks off at once."""
        self.naive.close()
        self.gone(trainer)

    def finish(self, trainer: Trainer) -> None:
        """Leave nothing on the model."""
        self.naive.close()
