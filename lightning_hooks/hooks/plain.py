"""The hooks of what is only looked at: the result of a module, the gradient of it, or both.

Most hooks are of this kind and most results are one tensor, so this case takes one call and leaves the others to the hook that
can do everything. The compiled classes serve where they were built; they do the same in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from lightning_hooks import backends
from lightning_hooks.hooks.gate import Gate
from lightning_hooks.hooks.gradients import GradHook, Visitor, has_gradient
from lightning_hooks.hooks.handles import OurHook

graph_task: Callable[[], int] = torch._C._current_graph_task_id
is_traced = torch.compiler.is_dynamo_compiling  # without the tracers whose tensors are of a type of their own


class PythonLookHook(OurHook):
    """A tensor hook for one visitor that only looks.

    Args:
        gate: closed, the gradient passes unseen.
        see: sees the gradient.
    """

    __slots__ = ("gate", "see")

    def __init__(self, gate: Gate, see: Visitor) -> None:
        self.gate = gate
        self.see = see

    def __call__(self, grad: Tensor | None) -> None:
        """Called by autograd; the gradient is None where a consumer's backward returned none."""
        if grad is not None and self.gate.open:
            self.see(grad)


class PythonPlainHook(OurHook):
    """A forward hook without keyword arguments.

    Args:
        gate: of the model.
        called: takes the ids of the modules that are called.
        see: what sees the result, if anything does.
        grad: what sees the gradient of the result, if anything does; the same object for every call of the module.
        otherwise: called with this hook, the module, its arguments and its result, where that is no tensor of numbers or may
            outlive the step.
    """

    __slots__ = ("called", "gate", "grad", "otherwise", "see")

    def __init__(
        self,
        gate: Gate,
        called: set[int],
        see: Visitor | None,
        grad: GradHook | LookHook | None,
        otherwise: Callable[..., Any],
    ) -> None:
        self.gate = gate
        self.called = called
        self.see = see
        self.grad = grad
        self.otherwise = otherwise

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        """Called by torch after the module."""
        if not self.gate.open or is_traced():
            return None
        if type(output) is not Tensor or not output.is_floating_point() or output.grad_fn is None:  # a leaf of the graph
            return self.otherwise(self, module, args, output)
        self.called.add(id(module))
        if self.see is not None and graph_task() == -1:  # else a recomputation, see `is_recomputation`
            self.see(output)
        if self.grad is not None and has_gradient(self.grad, args, output):
            output.register_hook(self.grad)
        return None


_compiled = backends.hooks().module

if TYPE_CHECKING or _compiled is None:
    LookHook = PythonLookHook
    PlainHook = PythonPlainHook
else:

    class LookHook(OurHook, _compiled.Look):
        """The same as in Python, compiled."""

        __slots__ = ()

    class PlainHook(OurHook, _compiled.Plain):
        """The same as in Python, compiled."""

        __slots__ = ()

        def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
            """Called by torch after the module."""
            if is_traced():  # in Python, so that a compiler sees it
                return None
            return self.run(module, args, output)

    _FLOATING = tuple(kind for kind in vars(torch).values() if isinstance(kind, torch.dtype) and kind.is_floating_point)
    _compiled.setup_hooks(Tensor, graph_task, (torch.float32, *_FLOATING), torch.is_grad_enabled, has_gradient)


def plain_hooks(module: nn.Module) -> Iterator[PlainHook]:
    """The plain hooks on a module.

    Args:
        module: any.
    """
    return (hook for hook in module._forward_hooks.values() if isinstance(hook, PlainHook))
