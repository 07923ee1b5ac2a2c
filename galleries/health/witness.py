"""What a training really did, measured without the package: its losses, outputs, gradients and updates."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from lightning.pytorch import Callback, LightningModule
from torch import Tensor

EVERY = 10
"""Outputs, gradients and updates are measured at every tenth step; losses at all."""


class Output(NamedTuple):
    """The output of a module in one call.

    Args:
        rms: the root mean square.
        top: the largest magnitude.
        dead: the share of units that are zero for all samples.
        spread: the standard deviation over samples, as a share of the root mean square.
        saturated: the share above 0.99 in magnitude.
        incoming: the root mean square of the input.
    """

    rms: float
    top: float
    dead: float
    spread: float
    saturated: float
    incoming: float


class Parameter(NamedTuple):
    """A parameter at one step: its norm, the norm of its gradient if it has one, and the norm of its change, relative."""

    norm: float
    gradient: float | None
    change: float


class Witness(Callback):
    """Keeps what the symptoms of faults are read from. Its keys are a step and the name of a module or parameter."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.outputs: dict[tuple[int, str], Output] = {}
        self.parameters: dict[tuple[int, str], Parameter] = {}
        self.rates: list[list[float]] = []
        self.held: list[set[str]] = []
        self.strangers: list[int] = []
        self._step = 0
        self._before: dict[str, Tensor] = {}

    def end(self) -> float:
        """The mean loss of the last 20 steps."""
        return self.mean(len(self.losses) - 20, len(self.losses))

    def mean(self, first: int, last: int) -> float:
        return sum(self.losses[first:last]) / (last - first)

    def change(self, name: str) -> float:
        """The largest change of a parameter in any step that was measured."""
        return max(found.change for (_, own), found in self.parameters.items() if own == name)

    def gradients(self, prefix: str, first: int = 0) -> list[float | None]:
        return [found.gradient for (step, name), found in self.parameters.items() if name.startswith(prefix) and step >= first]

    def rows(self, name: str, first: int = 0) -> list[Output]:
        return [found for (step, own), found in self.outputs.items() if own == name and step >= first]

    def finite(self) -> int:
        """The number of steps before the first loss that is not finite."""
        return next((step for step, loss in enumerate(self.losses) if not math.isfinite(loss)), len(self.losses))

    def on_fit_start(self, trainer: Any, pl_module: LightningModule) -> None:
        self.module = pl_module
        for name, module in pl_module.named_modules():
            if not list(module.children()):
                module.register_forward_hook(lambda _, inputs, output, name=name: self._note(name, inputs, output))

    def _note(self, name: str, inputs: Any, output: Any) -> None:
        if self._step % EVERY or not isinstance(output, Tensor):
            return
        output, given = output.detach().float(), inputs[0].detach().float()
        units = (output.transpose(1, -1) if output.dim() == 4 else output).flatten(0, -2)
        rms = float(output.square().mean().sqrt())
        self.outputs[self._step, name] = Output(
            rms,
            float(output.abs().max()),
            float((units.abs() < 1e-5).all(0).float().mean()),
            float(units.std(0).mean()) / max(rms, 1e-30),
            float((output.abs() > 0.99).float().mean()),
            float(given.square().mean().sqrt()),
        )

    def on_before_backward(self, trainer: Any, pl_module: LightningModule, loss: Tensor) -> None:
        self.losses.append(float(loss.detach()))

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        self.rates.append([group["lr"] for optimizer in trainer.optimizers for group in optimizer.param_groups])

    def on_before_optimizer_step(self, trainer: Any, pl_module: LightningModule, optimizer: Any) -> None:
        self._before = {name: parameter.detach().clone() for name, parameter in pl_module.named_parameters()}

    def on_train_batch_end(self, trainer: Any, pl_module: LightningModule, *_: Any) -> None:
        named = dict(pl_module.named_parameters())
        names = {id(parameter): name for name, parameter in named.items()}
        held = [id(p) for optimizer in trainer.optimizers for group in optimizer.param_groups for p in group["params"]]
        self.held.append({names[key] for key in held if key in names})
        self.strangers.append(sum(key not in names for key in held))
        # Of a step that takes several batches, the first ones come before any update.
        if self._step % EVERY == 0 and self._before:
            for name, parameter in named.items():
                self._measure(name, parameter)
        self._step += 1

    @torch.no_grad()
    def _measure(self, name: str, parameter: Tensor) -> None:
        before = self._before[name].float()
        norm, change = float(before.norm()), float((parameter - before).float().norm())
        gradient = None if parameter.grad is None else float(parameter.grad.float().norm())
        self.parameters[self._step, name] = Parameter(norm, gradient, change / max(norm, 1e-30))
