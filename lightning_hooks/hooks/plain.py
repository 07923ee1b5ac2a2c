"""Plain hooks: the hooks of modules whose result is only read, as a whole, and whose gradient is read or changed.

Most hooks are of this kind and most results are one tensor, so that case takes one call. Other results go to the fallback. If
the C++ classes were built, they are used instead of the Python ones; both do the same in the same order. A pre-hook that only
reads also has a short way for arguments that are one tensor, in Python.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from lightning_hooks import backends
from lightning_hooks.hooks import traces
from lightning_hooks.hooks.autograd import names
from lightning_hooks.hooks.eager import PreHook, is_off, is_recomputation, measured_in
from lightning_hooks.hooks.gradients import GradHook, OutputGradients, has_gradient
from lightning_hooks.hooks.handles import OurHook, at_first_switch
from lightning_hooks.hooks.readers import Reader
from lightning_hooks.hooks.switch import BackwardPass, HookSwitch
from lightning_hooks.tensor_kinds import without_subclass

# Test for Dynamo only: other tracers call hooks with tensor types of their own, which go to `fall_back`.
is_traced = torch.compiler.is_dynamo_compiling


def _is_usual(value: Any) -> bool:
    """Whether a value is a single floating-point tensor of torch's own type with a node."""
    return type(value) is Tensor and value.is_floating_point() and value.grad_fn is not None


class PlainPreHook(PreHook):
    """A pre-hook of a module of whose inputs all tensors are only read."""

    __slots__ = ()

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if is_off(self.hooks.switch):
            return None
        if len(args) != 1 or kwargs or not _is_usual(args[0]):
            return super().__call__(module, args, kwargs)
        actions = self.hooks.actions
        actions.called.add(id(module))
        if not is_recomputation():
            for action in actions.input:
                action.call(args[0])
        return None


class PythonGradReader(OurHook):
    """A tensor hook for a reader of the gradient of the loss."""

    __slots__ = ("switch", "read")

    def __init__(self, switch: HookSwitch, read: Reader) -> None:
        self.switch = switch
        self.read = read

    def __call__(self, grad: Tensor | None) -> None:
        # Autograd passes None where the backward of an operation returned None.
        if grad is not None and self.switch.lets_through(BackwardPass.LOSS, grad):
            self.read(grad)


class PythonPlainHook(OurHook):
    """A forward hook without keyword arguments.

    Args:
        switch: the switch that the hook reads.
        called: takes the ids of the modules that are called.
        read: called with the result; None if there is no reader.
        grad: the hook on the gradient of the result, or None; the same object for every call of the module.
        fall_back: called with this hook, the module, its arguments and its result, if the result is not a single floating-point
            tensor with a node.
    """

    __slots__ = ("called", "fall_back", "switch", "grad", "read")

    def __init__(
        self,
        switch: HookSwitch,
        called: set[int],
        read: Reader | None,
        grad: GradHook | GradReader | None,
        fall_back: Callable[..., Any],
    ) -> None:
        self.switch = switch
        self.called = called
        self.read = read
        self.grad = grad
        self.fall_back = fall_back

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        if not self.switch.is_on:
            return None
        if is_traced():
            traces.note()
            return None
        # Pass on a tensor without a node: it is a leaf of the autograd graph, or was computed without gradients.
        if not _is_usual(output):
            return self.fall_back(self, module, args, output)
        self.called.add(id(module))
        if self.read is not None and not is_recomputation():
            self.read(output)
        if self.grad is not None and has_gradient(self.grad, args, output):
            output.register_hook(self.grad)
        return None


def fall_back(
    gradients: OutputGradients, switch: HookSwitch, hook: PlainHook, module: nn.Module, args: tuple[Any, ...], output: Any
) -> None:
    """Handle a result for a plain hook that is not a single floating-point tensor with a node: nested, leaf, subclass, complex.

    Args:
        gradients: hooks the gradients of results.
        switch: the switch that the hook reads.
        hook: the plain hook.
        module: the module that was called.
        args: the positional arguments of the call.
        output: the result of the call.
    """
    # Ask only here whether calls without gradients count as part of a step: their results have no node, so they all come here.
    if torch.compiler.is_compiling() or switch.leaves_out():
        return
    hook.called.add(id(module))
    tensors = measured_in(output)
    if hook.read is not None and not is_recomputation():
        for tensor in tensors:
            hook.read(tensor)
    # While autograd records nothing, a result that needs a gradient is an input returned unchanged: its graph was built
    # outside this module, so do not hook it.
    if hook.grad is not None and torch.is_grad_enabled():
        # While the hook is registered, disable the code of tensor subclasses, which may fail or have side effects.
        with without_subclass():
            for tensor in tensors:
                if tensor.requires_grad:
                    gradients.hook(tensor, hook.grad, hook.grad, args)


_compiled = backends.hooks().module


@cache
def choose_tensor_hooks() -> None:
    """Choose how the C++ hooks register hooks on gradients.

    Not called at import, because it tries a backward pass, after which a process should not be forked.
    """
    if _compiled is not None and backends.tensor_hooks().serves == "direct":
        _compiled.place_hooks_in(OrderedDict)


if TYPE_CHECKING or _compiled is None:
    GradReader = PythonGradReader
    PlainHook = PythonPlainHook
else:

    class GradReader(OurHook, _compiled.GradReader):
        __slots__ = ()

    class PlainHook(OurHook, _compiled.Plain):
        __slots__ = ()

        def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
            # Test here in Python: the compiler cannot trace the C++ method.
            if is_traced():
                traces.note()
                return None
            return self.run(module, args, output)

    _FLOATING = tuple(kind for kind in vars(torch).values() if isinstance(kind, torch.dtype) and kind.is_floating_point)

    @at_first_switch
    def _setup() -> None:
        kinds = (torch.float32, *_FLOATING)
        _compiled.setup_hooks(Tensor, names.graph_task_id, kinds, torch.is_grad_enabled, has_gradient)
