"""The switch that every hook of one model reads: whether hooks are on, and whether a backward pass is that of the loss.

A training step may differentiate more than its loss: forces are the gradient of an energy, and a penalty may be the gradient of
an output. Such an inner gradient flows through the same hooked tensors, and is not the gradient that trains the model.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, Final
from weakref import ReferenceType, ref

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.nn.parameter import is_lazy

from lightning_hooks import backends
from lightning_hooks.hooks.autograd import Names, names
from lightning_hooks.hooks.handles import run_at_first_switch
from lightning_hooks.hooks.untraced import untraced
from lightning_hooks.tensor_kinds import is_transformed, without_subclass

if TYPE_CHECKING:
    from lightning_hooks.backends._native import SwitchBase
else:
    SwitchBase = getattr(backends.hooks().module, "SwitchBase", object)


COUNTED: Final = ("training", "gradients", "all")
"""The calls of modules in which hooks may act: with gradients or in training mode; with gradients; all."""


class BackwardPass(Enum):
    """The backward passes whose gradients an action gets."""

    LOSS = "those of the loss"
    INNER = "all others"
    ANY = "all"


class HookSwitch(SwitchBase):
    """What every hook of one model reads first: whether hooks are on, and which backward pass is running.

    The C++ hooks read all attributes but `traced`, `replays`, `in_loss`, `counts` and `left_out` without the interpreter.

    Args:
        model: held by a weak reference. A backward pass that computes gradients of its parameters counts as that of the loss,
            also without `.backward()`.

    Attributes:
        is_on: whether hooks are on. While it is False, hooks return at once: during the sanity check, in stages that are not
            watched, and between batches.
        traced: whether hooks inside compiled code are on and have actions in this step. The compiler makes one variant of a
            graph for each value.
        replays: whether operations in compiled code write rows in place of the actions of hooks. The compiler makes one variant
            of a graph for each value.
        awaits_loss: whether the training loop will announce the backward of the loss and has not done so yet. Until then no
            gradient is one of the loss.
        in_loss: whether the backward of the loss was announced and has not ended.
        only_loss: whether every backward pass that runs is that of the loss, so that hooks need not identify the pass. False
            after an inner gradient: activation checkpointing repeats inner gradients of a forward inside the backward of the
            loss.
        saw_inner: whether there was an inner gradient.
        pass_number: the number of the backward pass that was identified last.
        is_loss: whether that pass is the backward of the loss.
        counts: the calls of modules in which hooks act, one of `COUNTED`.
        left_out: whether hooks have left out a call since the last step began.
    """

    def __init__(self, model: nn.Module | None = None) -> None:
        self.is_on = self.traced = self.replays = self.awaits_loss = self.in_loss = self.only_loss = self.saw_inner = (
            self.is_loss
        ) = False
        self.pass_number = -1
        self.counts, self.left_out = "all", False
        self._model: ReferenceType[nn.Module] | None = None if model is None else ref(model)
        self._accumulators: list[Any] | None = None
        run_at_first_switch()

    def __reduce__(self) -> tuple[type[HookSwitch], tuple[()]]:
        """A copy is off, and has no model."""
        return (HookSwitch, ())

    def turn_off(self) -> None:
        self.is_on = self.traced = self.replays = self.only_loss = False
        self._accumulators = None

    @untraced
    def leaves_out(self, has_gradients: bool | None = None) -> bool:
        """Whether hooks do nothing in the call under way, because it is no part of a training step.

        The mode is that of the root: in a training forward a frozen part may be in evaluation mode and run without gradients,
        and so may the first run of a checkpointed part.

        Args:
            has_gradients: whether autograd records in the call; None to ask torch. A compiled graph has to say, because torch
                runs it without gradients.
        """
        if self.counts == "all" or (torch.is_grad_enabled() if has_gradients is None else has_gradients):
            return False
        model = None if self._model is None else self._model()
        if self.counts == "training" and (model is None or model.training):
            return False
        self.left_out = True
        return True

    def begin_backward(self) -> None:
        """Called when the training loop announces the backward of the loss."""
        self.in_loss, self.awaits_loss, self.only_loss = True, False, not self.saw_inner
        # A forward pass inside the backward is a recomputation, which only the actions of hooks recognise.
        self.replays = False

    def end_backward(self, waits: bool) -> None:
        """Called when the backward of the loss has ended; `waits` says whether the next one will be announced."""
        self.in_loss, self.awaits_loss, self.only_loss = False, waits, False

    @untraced
    def lets_through(self, backward: BackwardPass, *grads: Tensor | None) -> bool:
        """Whether an action on gradients of some backward passes gets those of the current pass."""
        if not self.is_on:
            return False
        if backward is BackwardPass.ANY or self.is_in_loss_backward() is (backward is BackwardPass.LOSS):
            return True
        return any(map(self.is_always_shown, grads))

    @untraced
    def is_always_shown(self, grad: Tensor | None) -> bool:
        """Whether actions get a gradient in every backward pass: they refuse gradients of `torch.func`, or warn of them."""
        return grad is not None and is_transformed(grad)

    def is_in_loss_backward(self) -> bool:
        """Whether hooks are on and the current backward pass is that of the loss."""
        if not self.is_on or self.only_loss:
            return self.is_on
        if self.awaits_loss:
            self.saw_inner = True
            return False
        number = names.graph_task_id()
        if number != self.pass_number or number < 0:
            self.is_loss = self.identify()
            self.pass_number = number
        return self.is_loss

    @untraced
    def identify(self) -> bool:
        """Identify the current backward pass, in its first hook. Returns whether it is that of the loss."""
        if not self._is_of_loss():
            self.saw_inner = True
            return False
        if not self.saw_inner and names.at_end is not Names.at_end:
            self.only_loss = True
            names.at_end(self._end_only_loss)
        return True

    @untraced
    def _end_only_loss(self) -> None:
        self.only_loss = False

    def _is_of_loss(self) -> bool:
        """Whether the current backward pass is that of the loss.

        `.backward()` is. `torch.autograd.grad` is if it computes gradients of the model's parameters without
        `create_graph=True`. With `create_graph=True` the result is itself a part of a loss, as in meta-learning. A reentrant
        checkpoint runs a part of the backward of the loss as a pass of its own, which is recognised by the same rules.
        """
        if names.accumulates is None:
            return self.in_loss or not torch.is_grad_enabled()
        if names.accumulates():
            return True
        # Inside a backward pass, gradients are enabled only with `create_graph=True`. Such a pass is not that of the loss,
        # unless the training loop has announced it.
        if torch.is_grad_enabled() and not self.in_loss:
            return False
        if self._accumulators is None:
            model = None if self._model is None else self._model()
            self._accumulators = [] if model is None else _accumulators_of(model)
        return any(map(names.reaches, self._accumulators))


def _accumulators_of(model: nn.Module) -> list[Any]:
    """The `AccumulateGrad` nodes of the trainable parameters."""
    with without_subclass():
        trained = (each for each in model.parameters() if each.requires_grad and not is_lazy(each))
        return [get_gradient_edge(each).node for each in trained]
