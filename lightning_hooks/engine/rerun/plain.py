"""The training of a plain loop."""

from __future__ import annotations

import inspect
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from typing_extensions import override

from lightning_hooks.engine.participants.facts import facts_of_optimizers
from lightning_hooks.engine.rerun.training import Training
from lightning_hooks.errors import shown


class NoLossError(Exception):
    """The output of a model without a loss function is not a loss."""


class PlainTraining(Training):
    """The step of a plain loop: the model, the loss and the optimizers, or a function that returns the loss.

    Args:
        model: the root module.
        optimizers: returns the optimizers; each updates its parameters in a step.
        loss: called as `loss(output, target)` with the output for the first part of a batch, and its second part. Inputs in a
            tuple or list are positional arguments of the model, and inputs in a mapping are arguments by name.
        step: called as `step(model, batch)` instead of the model and the loss; returns the loss. Without both, the whole batch
            is the input, and the model returns its loss.
        accumulates: the number of batches whose gradients the loop adds up for one step of the optimizers.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: Callable[[], Sequence[Optimizer]] = tuple,
        loss: Any = None,
        step: Any = None,
        accumulates: int = 1,
    ) -> None:
        super().__init__(model)
        self.accumulates = accumulates
        self._optimizers, self._loss, self._step = optimizers, loss, step

    @property
    @override
    def optimizers(self) -> list[Optimizer]:
        return list(self._optimizers())

    @property
    @override
    def holders(self) -> Iterable[Any]:
        return [each for each in (self._loss, self._step) if each is not None]

    @property
    @override
    def other_parameters(self) -> Iterable[nn.Parameter]:
        return [each for holder in self.holders if isinstance(holder, nn.Module) for each in holder.parameters()]

    @override
    def facts(self) -> Mapping[str, Any]:
        facts = facts_of_optimizers(self.optimizers, self.model)
        return {
            "optimizers": {f"{i} {each.type}": [group.lr for group in each.groups] for i, each in enumerate(facts)},
            "model": f"{type(self.model).__module__}.{type(self.model).__qualname__}",
            "torch": torch.__version__,
            "python": platform.python_version(),
        }

    @override
    def train(self, batch: Any, batch_idx: int) -> Tensor | None:
        optimizers = self.optimizers
        for optimizer in optimizers:
            optimizer.zero_grad()
        losses: list[Tensor] = []

        def closure() -> Tensor:
            loss = self.differentiate(batch, batch_idx)
            losses.append(loss)
            return loss

        needing = [each for each in optimizers if _needs_closure(each)]
        if not needing:
            closure()
        for optimizer in optimizers:
            if optimizer in needing:
                optimizer.step(closure)  # type: ignore[arg-type]
            else:
                optimizer.step()
        return losses[-1] if losses else None

    @override
    def differentiate(self, batch: Any, batch_idx: int, updates: int = 0) -> Tensor:
        loss = self._loss_of(batch)
        if loss.requires_grad:
            loss.backward()
        return loss

    def _loss_of(self, batch: Any) -> Tensor:
        if self._step is not None:
            return _as_loss(self._step(self.model, batch), "step")
        output = _called(self.model, batch[0] if self._loss is not None else batch)
        if self._loss is not None:
            return _as_loss(self._loss(output, batch[1]), "loss")
        loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
        if isinstance(loss, Tensor) and loss.numel() == 1:
            return loss
        if isinstance(output, Tensor) and output.numel() == 1:
            return output.sum()
        raise NoLossError("the model returns no loss; give loss= or step=")


def _as_loss(loss: Any, source: str) -> Tensor:
    if isinstance(loss, Mapping):
        loss = loss.get("loss")
    if not isinstance(loss, Tensor):
        raise TypeError(f"{source} must return the loss as a tensor, got {shown(loss)}")
    if loss.numel() != 1:
        raise TypeError(f"{source} must return one number, got a tensor of shape {tuple(loss.shape)}")
    return loss


def _called(model: nn.Module, inputs: Any) -> Any:
    if isinstance(inputs, Mapping):
        return model(**inputs)
    if isinstance(inputs, (tuple, list)) and not hasattr(inputs, "_fields"):
        return model(*inputs)
    return model(inputs)


def _needs_closure(optimizer: Optimizer) -> bool:
    closure: Callable[..., Any] = type(optimizer).step
    parameter = inspect.signature(inspect.unwrap(closure)).parameters.get("closure")
    return parameter is not None and parameter.default is inspect.Parameter.empty
