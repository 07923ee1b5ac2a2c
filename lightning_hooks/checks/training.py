"""Training: how one batch is trained. What a check runs, whether a plain loop trains or Lightning does."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from lightning_hooks.checks.batch import leaves
from lightning_hooks.errors import RuleError, shown


class Training:
    """A model, a batch, and the step that trains the one on the other.

    Args:
        model: the root module.
        batch: any nested containers of tensors.
        optimizers: that the step uses; may be empty.

    Attributes:
        holders: other objects whose state a step may change, such as schedulers and loss scalers.
        notes: about the training, for the report.
        scales_loss: whether a loss scaler multiplies the loss, so that first gradients may overflow.
        precision: in which the step runs: `float32`, or what the Trainer calls it.
    """

    scales_loss = False
    precision = "float32"

    def __init__(self, model: nn.Module, batch: Any, optimizers: Sequence[Optimizer] = ()) -> None:
        self.model, self.batch, self.optimizers = model, batch, list(optimizers)
        self.notes: list[str] = []

    @property
    def holders(self) -> Iterable[Any]:
        return ()

    @property
    def other_parameters(self) -> Iterable[nn.Parameter]:
        """Parameters that are trained and belong to no module of the model, such as those of a loss."""
        return ()

    def step(self, batch: Any, index: int) -> None:
        """Run one whole step: forward, loss, backward, and the steps of the optimizers.

        Args:
            batch: a copy, which the step may change.
            index: of the batch in its epoch.
        """
        raise NotImplementedError

    def context(self) -> AbstractContextManager[Any]:
        """The context in which a step calls modules, such as autocast."""
        return nullcontext()


class PlainTraining(Training):
    """The step of a plain loop.

    Args:
        model: the module.
        batch: `(inputs, target)` with a loss; with a `step` anything. Inputs in a tuple or list are positional arguments of
            the model, and inputs in a mapping are arguments by name. Without both the whole batch is the input.
        loss: called as `loss(output, target)`.
        optimizer: one, or several; all take a step.
        step: called as `step(model, batch)` instead of the model and the loss; it returns the loss.

    Raises:
        RuleError: an argument is of another type.
    """

    def __init__(self, model: Any, batch: Any, loss: Any = None, optimizer: Any = None, step: Any = None) -> None:
        if not isinstance(model, nn.Module):
            raise RuleError(f"check: the model must be a torch.nn.Module, or the first argument a Trainer, got {shown(model)}")
        for name, function in (("loss", loss), ("step", step)):
            if function is not None and not callable(function):
                raise RuleError(f"check: {name} must be a function, got {shown(function)}")
        if loss is not None and step is not None:
            raise RuleError("check: give either loss=, called as loss(output, target), or step=, called as step(model, batch)")
        if loss is not None and not (isinstance(batch, (tuple, list)) and len(batch) == 2):
            raise RuleError(
                f"check: with loss= the batch must be a pair (inputs, target), got {type(batch).__name__}; for other batches "
                "give step=, called as step(model, batch)"
            )
        if loss is None and step is None and hasattr(model, "training_step"):
            raise RuleError(f"check: {type(model).__name__} is a LightningModule; call check(trainer, module, data)")
        if not any(True for _ in leaves(batch)):
            raise RuleError(f"check: the batch holds no tensor, got {shown(batch)}")
        super().__init__(model, batch, _as_optimizers(optimizer))
        self._loss, self._step = loss, step

    @property
    def holders(self) -> Iterable[Any]:
        return [each for each in (self._loss, self._step) if each is not None]

    @property
    def other_parameters(self) -> Iterable[nn.Parameter]:
        return [each for holder in self.holders if isinstance(holder, nn.Module) for each in holder.parameters()]

    def step(self, batch: Any, index: int) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad()

        def closure() -> Tensor:
            loss = self.loss_of(batch)
            if loss.requires_grad:
                loss.backward()
            return loss

        needing = [each for each in self.optimizers if _needs_closure(each)]
        if not needing:
            closure()
        for optimizer in self.optimizers:
            if optimizer in needing:
                optimizer.step(closure)  # type: ignore[arg-type]
            else:
                optimizer.step()

    def loss_of(self, batch: Any) -> Tensor:
        """The loss of a batch; the sum of the outputs if the model has no loss."""
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


class NoLossError(Exception):
    """The output of a model without a loss function is not a loss."""


def _as_optimizers(optimizer: Any) -> list[Optimizer]:
    optimizers = [] if optimizer is None else list(optimizer) if isinstance(optimizer, (list, tuple)) else [optimizer]
    for each in optimizers:
        if not isinstance(each, Optimizer):
            raise RuleError(f"check: optimizer must be a torch.optim.Optimizer or a list of these, got {shown(each)}")
    return optimizers


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
