"""Plain hooks: the hooks of modules whose result is only read, as a whole, and whose gradient is read or changed.

Most hooks are of this kind and most results are one tensor, so for that case there are C++ classes, which take one call. Other
results go to the fallback. A pre-hook that only reads also has a short way for arguments that are one tensor, in Python.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn

from lightning_hooks import backends
from lightning_hooks.hooks import traces
from lightning_hooks.hooks.autograd import names
from lightning_hooks.hooks.eager import PreHook, is_off, is_recomputation, measured_in
from lightning_hooks.hooks.gradients import OutputGradients, has_gradient
from lightning_hooks.hooks.handles import OurHook, at_first_switch
from lightning_hooks.hooks.switch import HookSwitch
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


_compiled = backends.hooks().module
IS_BUILT: Final = _compiled is not None
"""Whether there are plain hooks. If not, general hooks take their place."""
if TYPE_CHECKING:
    from lightning_hooks.backends._native import GradReader as _GradReader
    from lightning_hooks.backends._native import Plain as _Plain
else:
    _GradReader, _Plain = (getattr(_compiled, name, object) for name in ("GradReader", "Plain"))


class GradReader(OurHook, _GradReader):
    """A tensor hook for a reader of the gradient of the loss."""

    __slots__ = ()


class PlainHook(OurHook, _Plain):
    """A forward hook without keyword arguments.

    Its arguments are the switch that the hook reads; the set that takes the ids of the modules that are called; the reader of
    the result, or None; the hook on the gradient of the result, the same object for every call of the module, or None; and
    what is called with this hook, the module, its arguments and its result, if the result is not a single floating-point
    tensor with a node.
    """

    __slots__ = ()

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        # Test here in Python: the compiler cannot trace the C++ method.
        if is_traced():
            traces.note()
            return None
        return self.run(module, args, output)


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


@cache
def choose_tensor_hooks() -> None:
    """Choose how the C++ hooks register hooks on gradients.

    Not called at import, because it tries a backward pass, after which a process should not be forked.
    """
    if _compiled is not None and backends.tensor_hooks().serves == "direct":
        _compiled.place_hooks_in(OrderedDict)


if _compiled is not None:
    _setup_hooks = _compiled.setup_hooks
    _FLOATING = tuple(kind for kind in vars(torch).values() if isinstance(kind, torch.dtype) and kind.is_floating_point)

    @at_first_switch
    def _setup() -> None:
        kinds = (torch.float32, *_FLOATING)
        _setup_hooks(Tensor, names.graph_task_id, kinds, torch.is_grad_enabled, has_gradient)
