"""The hooks of what is only looked at: the result of a module, the gradient of it, or both.

Most hooks are of this kind and most results are one tensor, so this case takes one call and leaves the others to the hook that
can do everything. These are the ones in Python; `quick` has the compiled ones.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any
from weakref import ReferenceType

import torch
from torch import Tensor, nn

from lightning_hooks.taps.calling import caller, give_way, is_bare
from lightning_hooks.taps.gate import Gate
from lightning_hooks.taps.gradients import GradHook, Visitor
from lightning_hooks.taps.handles import OurHook

_graph_task: Callable[[], int] = torch._C._current_graph_task_id
is_traced = torch.compiler.is_dynamo_compiling  # without the tracers whose tensors are of a type of their own


def _takes_hooks() -> bool:
    """Whether a tensor's hooks can be put in place at once, as `Tensor.register_hook` does it step by step."""
    tensor = torch.zeros(1, requires_grad=True).clone()
    return hasattr(tensor, "_backward_hooks") and hasattr(tensor.grad_fn, "_register_hook_dict")


TAKES_HOOKS = _takes_hooks()


def hook_gradient(output: Tensor, node: Any, hook: Callable[..., Any]) -> None:
    """Do what `Tensor.register_hook` does, without a handle: nothing takes this hook away before the graph goes.

    The node keeps the dictionary; the tensor is given back as it was, and a later hook has a dictionary of its own.

    Args:
        output: of a node of the graph.
        node: it.
        hook: called with the gradient.
    """
    if not TAKES_HOOKS or output._backward_hooks is not None:
        output.register_hook(hook)
        return
    output._backward_hooks = {-1: hook}
    try:
        node._register_hook_dict(output)
    finally:
        output._backward_hooks = None


def takes_gradient(key: Any, output: Tensor, node: Any) -> bool:
    """Whether the gradient of a tensor that a module returns as it was given is to be seen for this call.

    Activation checkpointing calls a module twice. A tensor that passes through both calls unchanged is the same one in the
    graph, or belongs to a graph from outside the checkpoint, and its gradient would count twice.

    Args:
        key: who sees it; the node holds it as long as the graph lives.
        output: the tensor.
        node: of the graph, from which it comes.
    """
    if not torch.is_grad_enabled():  # the first call under a reentrant checkpoint
        return False
    place = (key, output.output_nr)
    if place in node.metadata:
        return False
    node.metadata[place] = True
    return True


class LookHook(OurHook):
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


def has_gradient(hook: Any, args: tuple[Any, ...], output: Tensor, node: Any) -> bool:
    """Whether a hook is to see the gradient of the result of a module, which comes from a node of the graph."""
    if any(output is given for given in args):
        return takes_gradient(hook, output, node)
    return torch.is_grad_enabled()  # else it was handed through in another way


class PlainHook(OurHook):
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
        node = output.grad_fn if type(output) is Tensor and output.is_floating_point() else None
        if node is None:  # without a node it is a leaf of the graph
            return self.otherwise(self, module, args, output)
        self.called.add(id(module))
        if self.see is not None and _graph_task() == -1:  # else a recomputation, see `is_recomputation`
            self.see(output)
        if self.grad is not None and has_gradient(self.grad, args, output, node):
            hook_gradient(output, node, self.grad)
        return None


class StandIn(OurHook):
    """What torch calls in place of a module that has no hook but this one, see `calling`.

    Args:
        hook: looks at the result.
        known: the module.
    """

    __slots__ = ("hook", "known")

    def __init__(self, hook: PlainHook, known: ReferenceType[nn.Module]) -> None:
        self.hook = hook
        self.known = known

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Called by torch in place of the module."""
        hook = self.hook
        if is_traced():  # whose frames are not those of torch
            return self.known()._call_impl(*args, **kwargs)  # type: ignore[union-attr]
        module = caller(sys._getframe(1))
        if module is None:  # called by its name
            module = self.known()
        if not hook.gate.open:
            return module._call_impl(*args, **kwargs)
        if not is_bare(module):
            give_way(module, hook)
            return module._call_impl(*args, **kwargs)
        output = module.forward(*args, **kwargs)
        changed = hook(module, args, output)
        return output if changed is None else changed
