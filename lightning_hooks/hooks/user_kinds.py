"""Registers a user's own hooks of the kinds that only torch itself can call.

Full backward hooks are used here and nowhere else: torch puts an identity node before and after the module for them, which
forbids in-place operations on its inputs and outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lightning_hooks.errors import UnsupportedError
from lightning_hooks.hooks.gradients import unfrozen
from lightning_hooks.hooks.handles import Handles, OurHook
from lightning_hooks.hooks.switch import HookSwitch
from lightning_hooks.tensor_kinds import without_subclass

OptimizerHook: TypeAlias = Callable[..., Any]
"""A hook around the steps of optimizers, from `optimizer_hook`."""


class _Switched(OurHook):
    """A hook that does nothing while hooks are off. Without a switch, it is always on."""

    def __init__(self, run: Callable[..., Any], switch: HookSwitch | None) -> None:
        self.run = run
        self.switch = switch

    def __call__(self, *args: Any) -> Any:
        return self.run(*args) if self.switch is None or self.switch.is_on else None


class _Counted(_Switched):
    """A hook of the forward pass, which acts only in calls that are a part of the step."""

    def __call__(self, *args: Any) -> Any:
        return None if self.switch is not None and self.switch.leaves_out() else super().__call__(*args)


def register_backward(
    module: nn.Module, run: Callable[..., Any], switch: HookSwitch, handles: Handles, *, before: bool, prepend: bool
) -> None:
    """Register a full backward hook, or pre-hook.

    Args:
        run: called as `(module, grad_output, like=)` before the module's backward, or as
            `(module, grad_input, grad_output, like=)` after it.
    """

    def hook(module: nn.Module, *grads: Any) -> Any:
        return run(module, *grads, like=grads[0])

    register = module.register_full_backward_pre_hook if before else module.register_full_backward_hook
    handles.register(register, _Switched(hook, switch), prepend=prepend)


def register_first(module: nn.Module, run: Callable[..., Any], switch: HookSwitch, handles: Handles, *, before: bool) -> None:
    """Register a forward hook or pre-hook before all others on a module.

    Args:
        run: called as `(module, args, kwargs)` before the module, or as `(module, args, kwargs, output)` after it.
    """
    register = module.register_forward_pre_hook if before else module.register_forward_hook
    handles.register(register, _Counted(run, switch), prepend=True, with_kwargs=True)


def register_post_accumulate(
    parameter: nn.Parameter, run: Callable[[Tensor], None], switch: HookSwitch, handles: Handles
) -> None:
    """Register a hook that runs when a backward has accumulated a gradient into `parameter.grad`."""
    with without_subclass(), unfrozen(parameter, handles):
        handles.register(parameter.register_post_accumulate_grad_hook, _Switched(run, switch))


def optimizer_hook(run: Callable[..., Any], switch: HookSwitch | None) -> OptimizerHook:
    """A hook around the steps of optimizers. It is not compiled with a compiled step: the compiler calls it outside the graph.

    Args:
        run: called as `(optimizer, args, kwargs)`. Before a step it may return new `(args, kwargs)`.
        switch: the switch that the hook reads; without a switch the hook runs at every step.
    """
    return _Switched(torch.compiler.disable(run), switch)


def register_optimizer(optimizer: Optimizer, hook: OptimizerHook, handles: Handles, *, before: bool) -> None:
    """Register a hook, which `optimizer_hook` has created, before or after the steps of an optimizer.

    Raises:
        UnsupportedError: the optimizer has no hooks around its step; Lightning accepts any object with a method `step`.
    """
    try:
        handles.register(optimizer.register_step_pre_hook if before else optimizer.register_step_post_hook, hook)
    except AttributeError as error:
        raise UnsupportedError(
            f"{type(optimizer).__name__} has no hooks around its step: it does not inherit from torch.optim.Optimizer, or its "
            "__init__ does not call super().__init__"
        ) from error


def closure_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The closure of an optimizer's step, from the arguments of a hook around the step; None if there is no closure."""
    return kwargs.get("closure", args[1] if len(args) > 1 else None)  # args[0] is the optimizer itself.


def register_saved(
    module: nn.Module,
    pair: tuple[Callable[..., Any], Callable[..., Any]],
    switch: HookSwitch,
    handles: Handles,
    *,
    is_due: Callable[[], bool],
) -> None:
    """Register a pair of functions (pack, unpack) for tensors that autograd saves inside the module's forward.

    Args:
        module: the module.
        pair: the functions that autograd calls; it may call unpack after the hooks are removed.
        switch: the switch that the hooks read.
        handles: remove the hooks.
        is_due: called at every call of the module; returns whether to use the pair.
    """
    entered: list[Any] = []
    exit_hook = _Exit(entered)
    handles.keep(exit_hook)
    handles.register(module.register_forward_pre_hook, _Enter(pair, switch, is_due, entered))
    handles.register(module.register_forward_hook, exit_hook, always_call=True)  # Torch calls it even if the forward raises.


class _Enter(OurHook):
    def __init__(
        self,
        pair: tuple[Callable[..., Any], Callable[..., Any]],
        switch: HookSwitch,
        is_due: Callable[[], bool],
        entered: list[Any],
    ) -> None:
        self.pair = pair
        self.switch = switch
        self.is_due = is_due
        self.entered = entered

    def __call__(self, module: nn.Module, args: Any) -> None:
        # Also push a placeholder when the hook is inactive: with a recursive module the exits must pair with the entries.
        context = None
        if self.switch.is_on and not self.switch.leaves_out() and self.is_due():
            context = torch.autograd.graph.saved_tensors_hooks(*self.pair)
            context.__enter__()
        self.entered.append(context)


class _Exit(OurHook):
    def __init__(self, entered: list[Any]) -> None:
        self.entered = entered

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        context = self.entered.pop() if self.entered else None
        if context is not None:
            context.__exit__(None, None, None)

    def remove(self) -> None:
        """Exit the contexts of forward passes that Ctrl-C ended, after which torch calls no forward hook."""
        while self.entered:
            self(None, None, None)  # type: ignore[arg-type]
