"""Taps inside compiled code: what the compiler sees of them are three operations that it cannot look into.

Hooks on modules inside a compiled one are traced with it, so they may touch no Python state: no lists, no counters, not even
an integer of their own, which would mean one graph for each of a hundred equal blocks. All that a traced hook holds is a
tensor with a number in it, its mark, and a flag that all hooks of a model share. The operations read the number when the
graph runs, and call the visitors that stand behind it: the same ones as in eager mode.

A gradient is seen in the backward of an identity function. Its node also has the mark's probe as an input, so that the
compiler does not drop an operation whose result nobody needs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from lightning_hooks.hooks.gate import Gate

_LIBRARY = torch.library.Library("lightning_hooks", "DEF")
# `look` says that it changes the mark, which keeps the compiler from dropping, repeating or reordering it.
_LIBRARY.define("look(Tensor x, Tensor(a!) mark) -> ()")
_LIBRARY.define("look_back(Tensor grad, Tensor mark) -> Tensor")
_LIBRARY.define("change_back(Tensor grad, Tensor mark) -> Tensor")

_NUMBERS = itertools.count()
_MARKS: WeakValueDictionary[int, Mark] = WeakValueDictionary()


@dataclass(eq=False)
class Mark:
    """One place in compiled code.

    Args:
        gate: of the model; closed, nothing is seen.
        called: told that the module was called.
        visitors: called with each tensor that passes, in order; they may change from step to step.
    """

    gate: Gate
    called: Callable[[], None]
    visitors: list[Callable[[Tensor], Tensor | None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Take a number."""
        number = next(_NUMBERS)
        _MARKS[number] = self
        self.tensor = torch.tensor(number)
        self.probe = torch.zeros(1, requires_grad=True)

    def visit(self, tensor: Tensor) -> Tensor:
        """Show a tensor to the visitors; what they make of it."""
        self.called()
        for visit in self.visitors:
            changed = visit(tensor)
            tensor = tensor if changed is None else changed
        return tensor


class Seen(torch.autograd.Function):
    """The identity; its backward shows the gradient to the visitors of a mark."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, probe: Tensor, mark: Tensor, changes: bool) -> Tensor:
        """A copy: a view would break modules that work in place on what they are given."""
        ctx.save_for_backward(mark)
        ctx.changes = changes
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, Tensor, None, None]:
        """The gradient, and for the probe a number that nobody reads."""
        (grad,), (mark,) = grads, ctx.saved_tensors
        if ctx.changes:
            grad = torch.ops.lightning_hooks.change_back(grad, mark)
            return grad, torch.zeros(1, device=mark.device), None, None
        return grad, torch.ops.lightning_hooks.look_back(grad, mark), None, None


def _found(mark: Tensor) -> Mark | None:
    found = _MARKS.get(int(mark))
    return found if found is not None and found.gate.open else None


def _look(x: Tensor, mark: Tensor) -> None:
    found = _found(mark)
    if found is not None and torch._C._current_graph_task_id() == -1:  # not computed again by activation checkpointing
        found.visit(x)


def _look_back(grad: Tensor, mark: Tensor) -> Tensor:
    found = _found(mark)
    if found is not None:
        found.visit(grad)
    return torch.zeros(1)


def _change_back(grad: Tensor, mark: Tensor) -> Tensor:
    found = _found(mark)
    result = grad if found is None else found.visit(grad)
    return torch.empty_like(grad).copy_(result)  # with the strides that the compiler was promised


_LIBRARY.impl("look", _look, "CompositeExplicitAutograd")
_LIBRARY.impl("look_back", _look_back, "CompositeExplicitAutograd")
_LIBRARY.impl("change_back", _change_back, "CompositeExplicitAutograd")
torch.library.register_fake("lightning_hooks::look", lambda x, mark: None)
torch.library.register_fake("lightning_hooks::look_back", lambda grad, mark: torch.zeros(1, device=mark.device))
torch.library.register_fake("lightning_hooks::change_back", lambda grad, mark: torch.empty_like(grad))
