"""The general hooks of a module outside compiled code: at most one pre-hook and one forward hook, which run all its actions.

They do not use `register_full_backward_hook`, which forbids in-place operations, misses outputs in dictionaries and costs six
times as much as a hook on the output tensor.
"""

from __future__ import annotations

from collections import defaultdict
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn

from lightning_hooks.hooks import traces
from lightning_hooks.hooks.action import Action, ModuleActions
from lightning_hooks.hooks.autograd import names
from lightning_hooks.hooks.gradients import (
    Contribution,
    GradHook,
    OutputGradients,
    connect,
    contributions,
)
from lightning_hooks.hooks.handles import Handles, OurHook
from lightning_hooks.hooks.parts import Arguments, part_of
from lightning_hooks.hooks.switch import BackwardPass, HookSwitch
from lightning_hooks.nested.rebuilding import map_tensors
from lightning_hooks.nested.tensors import tensors_in
from lightning_hooks.tensor_kinds import is_measured, without_subclass


class EagerHooks:
    """State that the two hooks of a module share, above all the calls that have begun and not returned.

    Args:
        actions: the actions of the module; may be replaced between two calls.
        switch: the switch that the hooks read.
        step_handles: calls `remove` when the step ends or the hooks are removed.
        gradients: hooks the gradients of results.
    """

    __slots__ = ("actions", "begun", "switch", "gradients", "step_handles")

    def __init__(self, actions: ModuleActions, switch: HookSwitch, step_handles: Handles, gradients: OutputGradients) -> None:
        self.actions = actions
        self.switch = switch
        self.step_handles = step_handles
        self.gradients = gradients
        # By thread, for each open call: the sequence number of autograd at its start, and the inputs whose gradient is read.
        self.begun: defaultdict[int, list[tuple[int, list[Contribution]]]] = defaultdict(list)

    def begin(self, pending: list[Contribution]) -> None:
        if self not in self.step_handles:
            self.step_handles.keep(self, key=self)
        self.begun[get_ident()].append((names.numbers[0](), pending))

    def remove(self) -> None:
        """Forget calls that never returned, such as recomputations that stop early: they keep a graph and its tensors alive."""
        self.begun.clear()


def is_off(switch: HookSwitch) -> bool:
    """Whether a hook outside compiled code does nothing in this call."""
    if not switch.is_on:
        return True
    if not torch.compiler.is_compiling():
        return switch.leaves_out()
    # The compiler traces a hook that was registered for eager code: the function that calls the module was not recognised as
    # compiled. Count the hook, so that an error can say that it has no effect.
    if torch.compiler.is_dynamo_compiling():
        traces.note()
    return True


class PreHook(OurHook):
    """Reads or changes the arguments of a call, and prepares the reading of gradients of its inputs."""

    __slots__ = ("hooks",)

    def __init__(self, hooks: EagerHooks) -> None:
        self.hooks = hooks

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        hooks, actions = self.hooks, self.hooks.actions
        if is_off(hooks.switch):
            return None
        actions.called.add(id(module))
        arguments = given = Arguments(args, kwargs)
        if any(action.changes for action in actions.input_grad):
            arguments = _with_own_nodes(arguments, actions.input_grad, hooks.switch)
        elif actions.input_grad:
            pending: list[Contribution] = []
            for action in filter(_acts_now, actions.input_grad):
                tensors = measured_in(_part(action, arguments))
                with without_subclass():
                    pending += contributions(tensors, action, hooks.switch)
            hooks.begin(pending)
        for action in actions.input:
            if action.whole:
                changed = action.call(module, arguments.args, arguments.kwargs)
                arguments = arguments if changed is None else Arguments(*changed)
            else:
                arguments = _act(action, arguments)
        return None if arguments is given else (arguments.args, arguments.kwargs)


class ForwardHook(OurHook):
    """Reads or changes the result of a call, and hooks what its gradients flow through."""

    __slots__ = ("hooks",)

    def __init__(self, hooks: EagerHooks) -> None:
        self.hooks = hooks

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        hooks, actions = self.hooks, self.hooks.actions
        if is_off(hooks.switch):
            return None
        actions.called.add(id(module))
        given = output
        for action in actions.output:
            if action.whole:
                changed = action.call(module, args, kwargs, output)
                output = output if changed is None else changed
            else:
                output = _act(action, output)
        # While hooks are registered, disable the code of tensor subclasses, which may fail or have side effects.
        with without_subclass():
            if hooks.begun and (begun := hooks.begun[get_ident()]):
                start, pending = begun.pop()
                if pending:
                    connect(pending, list(tensors_in(output)), start)
            # While autograd records nothing, a result that needs a gradient is an input returned unchanged: its graph was built
            # outside this module, so do not hook it.
            if actions.output_grad and torch.is_grad_enabled():
                self._hook_gradients((args, kwargs), output)
            nodes = dict.fromkeys(t.grad_fn for t in measured_in(output) if t.grad_fn is not None) if actions.node else {}
        for action in actions.node:
            for node in nodes:
                action.call(node)
        return None if output is given else output

    def _hook_gradients(self, given: Any, output: Any) -> None:
        by_tensor: dict[int, tuple[Tensor, list[Action]]] = {}
        for action in filter(_acts_now, self.hooks.actions.output_grad):
            for tensor in measured_in(_part(action, output)):
                if tensor.requires_grad:
                    by_tensor.setdefault(id(tensor), (tensor, []))[1].append(action)
        for tensor, actions in by_tensor.values():
            self.hooks.gradients.hook(tensor, GradHook(actions, self.hooks.switch), self.hooks, given)


class WholeHook(OurHook):
    """A forward hook for one action on whole calls.

    Args:
        switch: the switch that the hook reads.
        called: takes the ids of the modules that are called.
        action: called with the module, its arguments and its result.
    """

    __slots__ = ("action", "called", "switch")

    def __init__(self, switch: HookSwitch, called: set[int], action: Action) -> None:
        self.switch = switch
        self.called = called
        self.action = action

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        if is_off(self.switch):
            return None
        self.called.add(id(module))
        return self.action.call(module, args, kwargs, output)


def is_recomputation() -> bool:
    """Whether the current forward is a recomputation of activation checkpointing: no other forward runs inside a backward."""
    return names.graph_task_id() != -1


def _acts_now(action: Action) -> bool:
    """Whether an action may hook gradients of this call. A recomputation would count inner gradients a second time."""
    return action.backward is not BackwardPass.INNER or not is_recomputation()


def measured_in(tree: Any) -> list[Tensor]:
    """The tensors of arguments or of a result that actions get, each once: self-attention takes one tensor three times."""
    return list({id(tensor): tensor for tensor in tensors_in(tree) if is_measured(tensor)}.values())


def _part(action: Action, tree: Any) -> Any:
    """The part of arguments or of a result that an action names. Also tells the action whether the part has a tensor."""
    part = _part_at(tree, action.path)
    if action.absent is not None:
        action.absent(any(True for _ in tensors_in(part)), tree)
    return part


def _part_at(tree: Any, path: str) -> Any:
    if isinstance(tree, Arguments) and not path:
        return tree.args, tree.kwargs
    return part_of(tree, path)


def _act(action: Action, tree: Any) -> Any:
    """Call an action with its tensors. Returns the tree with their replacements, or the same object if nothing changed."""
    if not action.changes:
        if action.recomputed or not is_recomputation():
            for tensor in measured_in(_part(action, tree)):
                action.call(tensor)
        return tree
    new: dict[int, Tensor] = {}
    for tensor in measured_in(_part(action, tree)):
        result = action.call(tensor)
        if result is not None and result is not tensor:
            new[id(tensor)] = result
    return _mapped(tree, lambda tensor: new.get(id(tensor), tensor)) if new else tree


def _mapped(tree: Any, change: Any) -> Any:
    if isinstance(tree, Arguments):
        return Arguments(*map_tensors(change, (tree.args, tree.kwargs)))
    return map_tensors(change, tree)


def _with_own_nodes(arguments: Arguments, actions: tuple[Action, ...], switch: HookSwitch) -> Arguments:
    """The arguments with each tensor replaced by a clone, so that a hook gets only this module's share of its gradient.

    A view instead of a clone would break modules that work in place.
    """
    by_tensor: dict[int, list[Action]] = {}
    for action in actions:
        for tensor in measured_in(_part_at(arguments, action.path)):
            if tensor.requires_grad:
                by_tensor.setdefault(id(tensor), []).append(action)
    clones: dict[int, Tensor] = {}

    def change(tensor: Tensor) -> Tensor:
        key = id(tensor)
        if key not in by_tensor or not torch.is_grad_enabled():
            return tensor
        if key not in clones:
            clones[key] = tensor.clone()
            clones[key].register_hook(GradHook(by_tensor[key], switch))
        return clones[key]

    changed: Arguments = _mapped(arguments, change)
    return changed
