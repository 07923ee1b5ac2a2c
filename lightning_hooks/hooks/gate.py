"""The gate that every hook of one model asks: whether hooks are on, and whether a backward pass is that of the loss.

A training step may differentiate more than its loss: forces are the gradient of an energy, a penalty is one of an output. Such
an inner gradient flows through the same hooked tensors, and is not the gradient that trains the model.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any
from weakref import ReferenceType, ref

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.nn.parameter import is_lazy

from lightning_hooks import backends
from lightning_hooks.hooks.autograd import Names, names
from lightning_hooks.hooks.handles import run_at_first_gate
from lightning_hooks.tensor_kinds import is_transformed, without_subclass

if TYPE_CHECKING:
    from lightning_hooks.backends._native import Flag
else:
    Flag = getattr(backends.hooks().module, "Flag", object)


class Passes(Enum):
    """The backward passes whose gradients an action is given."""

    LOSS = "those of the loss"
    INNER = "all others"
    ALL = "all"


class Gate(Flag):
    """Flags that every hook of one model shares.

    Compiled hooks read all but `traced` and `announced` without the interpreter.

    Args:
        model: known weakly. A gradient of its parameters is one of the loss, also without `.backward()`.

    Attributes:
        open: False during the sanity check, in stages that are not watched and between batches: hooks return at once.
        traced: the same for hooks inside compiled code, and whether anything happens there in this step; the compiler has one
            variant of a graph for each value.
        waits: the backward of the loss will be announced, and has not begun. Until then no gradient is one of the loss.
        announced: the backward of the loss has been announced, and has not ended.
        sure: every backward pass under way is that of the loss, so that hooks need not ask which one it is. Only while no inner
            gradient was seen: activation checkpointing repeats those of a forward inside the backward of the loss.
        inner: an inner gradient was seen.
        number: of the backward pass of which `counts` was asked last.
        counted: the answer.
    """

    def __init__(self, model: nn.Module | None = None) -> None:
        self.open = self.traced = self.waits = self.announced = self.sure = self.inner = self.counted = False
        self.number = -1
        self._model: ReferenceType[nn.Module] | None = None if model is None else ref(model)
        self._accumulators: list[Any] | None = None
        run_at_first_gate()

    def __reduce__(self) -> tuple[type[Gate], tuple[()]]:
        """A copy is closed, and not shared."""
        return (Gate, ())

    def shut(self) -> None:
        self.open = self.traced = self.sure = False
        self._accumulators = None

    def begin_backward(self) -> None:
        """The backward of the loss begins, as the training loop says."""
        self.announced, self.waits, self.sure = True, False, not self.inner

    def end_backward(self, waits: bool) -> None:
        """The backward of the loss has ended; `waits` says whether the next one will be announced."""
        self.announced, self.waits, self.sure = False, waits, False

    def wants(self, passes: Passes, *grads: Tensor | None) -> bool:
        """Whether an action that acts in some backward passes is given gradients of the current one."""
        if not self.open:
            return False
        return passes is Passes.ALL or self.counts() is (passes is Passes.LOSS) or any(map(self.shows, grads))

    def shows(self, grad: Tensor | None) -> bool:
        """Whether a gradient is shown in every backward pass: actions refuse, or warn of, what `torch.func` computes with."""
        return grad is not None and is_transformed(grad)

    def counts(self) -> bool:
        """Whether hooks are on, and the current backward pass is that of the loss."""
        if not self.open or self.sure:
            return self.open
        if self.waits:
            self.inner = True
            return False
        number = names.graph_task_id()
        if number != self.number or number < 0:
            self.counted = self.decide()
            self.number = number
        return self.counted

    def decide(self) -> bool:
        """As `counts`, for the first hook of a backward pass."""
        if not self._is_of_loss():
            self.inner = True
            return False
        if not self.inner and names.at_end is not Names.at_end:
            self.sure = True
            names.at_end(self._doubt)
        return True

    def _doubt(self) -> None:
        self.sure = False

    def _is_of_loss(self) -> bool:
        """Whether the current backward pass is that of the loss.

        `.backward()` is. `torch.autograd.grad` is if it differentiates by parameters of the model, and not with
        `create_graph=True`: then the result is itself a part of a loss, as in meta-learning. Parts of the backward of the loss
        that run as passes of their own, as under reentrant checkpoints, do the same.
        """
        if names.accumulates is None:
            return self.announced or not torch.is_grad_enabled()
        if names.accumulates():
            return True
        if torch.is_grad_enabled() and not self.announced:  # in a backward pass this means `create_graph=True`
            return False
        if self._accumulators is None:
            model = None if self._model is None else self._model()
            self._accumulators = [] if model is None else _accumulators_of(model)
        return any(map(names.reaches, self._accumulators))


def _accumulators_of(model: nn.Module) -> list[Any]:
    """The nodes that take in the gradients of the parameters."""
    with without_subclass():
        trained = (each for each in model.parameters() if each.requires_grad and not is_lazy(each))
        return [get_gradient_edge(each).node for each in trained]
